"""Results of using a bundle: predictions, a file of predictions, exports.
Light to import, so that commands can show them without loading torch.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dear.adapters.wording import UNOWNED
from dear.data.sources.answers import holds_answers
from dear.data.sources.table import CHECKED, DECISION, LABELS, NONE, PREDICTED, SUGGESTED
from dear.errors import DataError, OutputError, SettingsError
from dear.reading.files import expanded
from dear.text import list_names
from dear.writing import UNFINISHED, csv_path, csv_rows, csv_text, output_file

SUFFIXES = (".csv", ".jsonl")
EVIDENCE = "evidence"
"""The output of an exported model that has the parts of the logits."""
RANKED = ("class", "probability")


@dataclass(frozen=True)
class ClassScore:
    """A class with its probability, its logit, and its evidence: what each feature adds to the logit,
    negative if it speaks against the class. The parts sum to the logit; attributes that own no head of the
    role table are in one part, "rest". Empty for a class outside the package whose parts do not sum to it.
    """

    name: str
    probability: float
    logit: float
    evidence: dict[str, float]


def is_sum(logits: Any, parts: Any) -> bool:
    """True if scores are the sums of these parts, up to rounding; of arrays or tensors of one shape."""
    return bool(abs(parts - logits).max() <= 1e-3 * (1 + abs(logits).max()))


def name_evidence(
    parts: Sequence[float], features: Sequence[str], without_heads: Sequence[str]
) -> dict[str, float]:
    """The part of each feature by name; attributes that own no head are summed into one part."""
    if not parts:
        return {}
    by_name = dict(zip(features, parts, strict=True))
    of_no_head = [by_name.pop(name) for name in without_heads]
    return by_name | ({UNOWNED: sum(of_no_head)} if of_no_head else {})


@dataclass(frozen=True)
class Prediction:
    """The most probable classes of an image, best first; ``image`` is its file, if it came from one;
    ``none_of_these`` if it looks like none of those that have training images. With an operating point,
    ``decision`` is "decided" or "to a person", and ``decided_class`` the class that is decided: the best one,
    unless costs speak for another. Without one both are empty. ``unchanged`` are the best classes by the
    bundle's own weights, if the predictor is steered by others.
    """

    image: str | None
    top: tuple[ClassScore, ...]
    none_of_these: bool = False
    decision: str = ""
    decided_class: str = ""
    unchanged: tuple[ClassScore, ...] = ()

    @property
    def best(self) -> ClassScore:
        return self.top[0]


@dataclass(frozen=True)
class Unreadable:
    """An unreadable image, and why."""

    image: str | None
    reason: str


@dataclass(frozen=True)
class Suggestion:
    """An image to label next: its file, else its number; its best class; the margin in probability between
    that and the second; and the number, from 1, of a group of images that are alike and of none of the
    classes, maybe of a new one; 0 for an image of the classes.
    """

    image: str
    suggested: str
    margin: float
    new_class: int = 0


@dataclass(frozen=True)
class PredictionsFile:
    """A file of predictions: the number of images in it, and the images that could not be read."""

    out: Path
    images: int
    unreadable: list[Unreadable]

    @property
    def partly(self) -> bool:
        """True if some images could not be read, which the exit code reports."""
        return bool(self.unreadable)


def write_predictions(out: Path | str, results: Iterable[Prediction | Unreadable]) -> PredictionsFile:
    """Write what `Predictor.predict_each` yields, all of it or nothing. Only a batch is in memory at a time.

    A .csv has one row per image: file, class and probability (a fraction) of the best class, then class_2,
    probability_2 and so on, none_of_these (yes, or empty), predicted (the best class again), checked (empty)
    and, with an operating point, decision and decided_class; files below its folder are named from there.
    `apply_labels` takes the rows whose class was changed since, or whose cell checked was filled in. A .jsonl
    has one object per image, with the evidence. Unreadable images are left out. Raises SettingsError for
    another suffix, DataError if no image can be read, OutputError.
    """
    out = expanded(out)
    check_table(out)
    images, unreadable, with_decision = 0, list[Unreadable](), tuple[str, ...]()
    with output_file(out) as file, csv_rows(file) as rows:
        for result in results:
            if isinstance(result, Unreadable):
                unreadable.append(result)
                continue
            if out.suffix.lower() == ".jsonl":
                file.write(json.dumps(asdict(result)).encode() + b"\n")
            else:
                if not images:
                    columns = [f"{name}_{n + 1}" for n in range(1, len(result.top)) for name in RANKED]
                    with_decision = DECISION if result.decision else ()
                    rows.writerow(["file", *RANKED, *columns, NONE, PREDICTED, CHECKED, *with_decision])
                none = "yes" if result.none_of_these else ""
                best = [cell for one in result.top for cell in (csv_text(one.name), one.probability)]
                decision = [result.decision, csv_text(result.decided_class)] if with_decision else []
                rows.writerow([csv_path(result.image or "", out), *best, none, best[0], "", *decision])
            images += 1
        if not images:
            reason = f": {unreadable[0].reason}" if unreadable else "."
            raise DataError(f"none of {len(unreadable)} images can be read{reason}")
    return PredictionsFile(out, images, unreadable)


def keep_results(
    out: Path, key: str, predict: Callable[[int], Iterable[Prediction | Unreadable]]
) -> Iterator[Prediction | Unreadable]:
    """What ``predict`` yields, each result kept beside ``out`` until all were.

    After an interruption those that were kept with the same ``key`` come first; ``predict`` is called with
    their number.
    """
    unfinished, head, done = expanded(out).with_name(f"{out.name}.{UNFINISHED}"), f"{key}\n".encode(), 0
    with unfinished.open("a+b") as kept:
        kept.seek(0)
        whole = len(head) if kept.readline() == head else 0
        for line in kept if whole else ():
            if not line.endswith(b"\n"):  # the process was killed while it wrote this
                break
            yield _read_result(json.loads(line))
            whole, done = whole + len(line), done + 1
        kept.truncate(whole)
        kept.write(b"" if whole else head)
        for result in predict(done):
            kept.write(json.dumps(asdict(result)).encode() + b"\n")
            kept.flush()
            yield result
    unfinished.unlink()


def _read_result(result: dict[str, Any]) -> Prediction | Unreadable:
    if "reason" in result:
        return Unreadable(**result)
    top = tuple(ClassScore(**candidate) for candidate in result["top"])
    return Prediction(
        result["image"], top, result["none_of_these"], result["decision"], result["decided_class"]
    )


def write_suggestions(out: Path | str, suggestions: Iterable[Suggestion]) -> Path:
    """Write images to label as a CSV with a row for each: file, label (empty, to be filled in), suggested,
    margin, none_of_these and new_class (the number of a group of these). `apply_labels` takes the rows that
    have a label. Raises SettingsError for another suffix, OutputError.
    """
    out = expanded(out)
    check_table(out, (".csv",))
    with output_file(out) as file, csv_rows(file) as rows:
        rows.writerow(["file", LABELS[0], SUGGESTED, "margin", NONE, "new_class"])
        for suggestion in suggestions:
            new = ["yes", suggestion.new_class] if suggestion.new_class else ["", ""]
            cells = csv_text(suggestion.suggested), f"{suggestion.margin:.4f}", *new
            rows.writerow([csv_path(suggestion.image, out), "", *cells])
    return out


def check_table(out: Path, suffixes: Sequence[str] = SUFFIXES) -> None:
    """Raise SettingsError for a file of another suffix, OutputError for a folder, and for a table in which
    somebody has corrected, confirmed or filled in labels, which would be lost.
    """
    if out.suffix.lower() not in suffixes:
        raise SettingsError(f"--out {out}: give a file ending in {list_names(suffixes)}.")
    if out.is_dir():
        raise OutputError(f"--out {out} is a folder: give the name of a file in it.")
    if holds_answers(out):
        raise OutputError(f"{out} has labels that were corrected or checked: give another --out.")


@dataclass(frozen=True)
class Exported:
    """An exported model.

    Attributes:
        classes: Number of classes built in; None for the image tower alone.
        checked: Number of images on which it was compared with torch, including random ones.
        difference: The largest difference of a logit (or of a feature) on them.
        same_best: On how many of them the best class agrees; None for the image tower alone.
    """

    path: Path
    outputs: tuple[str, ...]
    classes: int | None
    bytes: int
    checked: int
    difference: float
    same_best: int | None
