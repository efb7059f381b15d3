"""Results of using a bundle: predictions, a file of predictions, scores, exports.
Light to import, so that commands can show them without loading torch.
"""

import csv
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from io import TextIOWrapper
from pathlib import Path
from typing import IO, Any, Literal

from dear.data.sources.table import CHECKED, LABELS, NONE, PREDICTED, SUGGESTED, holds_labels
from dear.errors import DataError, OutputError, SettingsError, listing, plural, printable
from dear.methods.registry import FIT_METHOD
from dear.reading.files import expanded
from dear.report.grid import csv_text
from dear.report.intervals import LEVEL, gain_interval, share_interval
from dear.writing import UNFINISHED, output_file

SUFFIXES = (".csv", ".jsonl")
RANKED = ("class", "probability")


@dataclass(frozen=True)
class Candidate:
    """A class with its probability, its logit, and its evidence: what each feature adds to the logit,
    negative if it speaks against the class. The parts sum to the logit; attributes that own no head of the
    role table are in one part, "rest".
    """

    name: str
    probability: float
    logit: float
    evidence: dict[str, float]


@dataclass(frozen=True)
class Prediction:
    """The most probable classes of an image, best first; ``image`` is its file, if it came from one;
    ``none_of_these`` if it looks like none of those that have training images.
    """

    image: str | None
    top: tuple[Candidate, ...]
    none_of_these: bool = False

    @property
    def best(self) -> Candidate:
        return self.top[0]


@dataclass(frozen=True)
class Unreadable:
    """An unreadable image, and why."""

    image: str | None
    reason: str


@dataclass(frozen=True)
class Suggestion:
    """An image to label next: its file, else its number; its best class; the margin in probability between
    that and the second; and whether it looks like none of the classes.
    """

    image: str
    suggested: str
    margin: float
    none_of_these: bool = False


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
    probability_2 and so on, none_of_these (yes, or empty), predicted (the best class again) and checked
    (empty); files below its folder are named from there. `load_dataset` reads the rows whose class was
    changed since, or whose cell checked was filled in, as labelled images. A .jsonl has one object per image,
    with the evidence. Unreadable images are left out. Raises SettingsError for another suffix, DataError if
    no image can be read, OutputError.
    """
    out = expanded(out)
    check_table(out)
    images, unreadable = 0, list[Unreadable]()
    with output_file(out) as file, csv_rows(file) as rows:
        for result in results:
            if isinstance(result, Unreadable):
                unreadable.append(result)
                continue
            if out.suffix.lower() == ".jsonl":
                file.write(json.dumps(asdict(result)).encode() + b"\n")
            else:
                if not images:
                    others = [f"{name}_{n + 1}" for n in range(1, len(result.top)) for name in RANKED]
                    rows.writerow(["file", *RANKED, *others, NONE, PREDICTED, CHECKED])
                none = "yes" if result.none_of_these else ""
                best = [cell for one in result.top for cell in (csv_text(one.name), one.probability)]
                rows.writerow([csv_path(result.image or "", out), *best, none, best[0], ""])
            images += 1
        if not images:
            reason = f": {unreadable[0].reason}" if unreadable else "."
            raise DataError(f"none of {len(unreadable)} images can be read{reason}")
    return PredictionsFile(out, images, unreadable)


@contextmanager
def csv_rows(file: IO[bytes]) -> Iterator[Any]:
    """A writer of CSV rows. Names of files keep their bytes; a mark at the start says that it is UTF-8."""
    text = TextIOWrapper(file, "utf-8-sig", "surrogateescape", newline="")
    yield csv.writer(text, lineterminator="\n")
    text.detach()


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
    top = tuple(Candidate(**candidate) for candidate in result["top"])
    return Prediction(result["image"], top, result["none_of_these"])


def write_suggestions(out: Path | str, suggestions: Iterable[Suggestion]) -> Path:
    """Write images to label as a CSV with a row for each: file, label (empty, to be filled in), suggested,
    margin and none_of_these. `load_dataset` reads the rows that have a label. Raises SettingsError for
    another suffix, OutputError.
    """
    out = expanded(out)
    check_table(out, (".csv",))
    with output_file(out) as file, csv_rows(file) as rows:
        rows.writerow(["file", LABELS[0], SUGGESTED, "margin", NONE])
        for one in suggestions:
            unlike, margin = "yes" if one.none_of_these else "", f"{one.margin:.4f}"
            rows.writerow([csv_path(one.image, out), "", csv_text(one.suggested), margin, unlike])
    return out


def check_table(out: Path, suffixes: Sequence[str] = SUFFIXES) -> None:
    """Raise SettingsError for a file of another suffix, OutputError for a folder and as `keep_labels`."""
    if out.suffix.lower() not in suffixes:
        raise SettingsError(f"--out {out}: give a file ending in {listing(suffixes)}.")
    if out.is_dir():
        raise OutputError(f"--out {out} is a folder: give the name of a file in it.")
    keep_labels(out)


def keep_labels(table: Path) -> None:
    """Raise OutputError for a table in which somebody has corrected or checked labels: they would be lost."""
    if holds_labels(table):
        raise OutputError(f"{table} has labels that were corrected or checked: give another --out.")


def csv_path(image: str, table: Path) -> str:
    """The file of an image as a table names it: from the table's folder on if it is below that, else whole.
    A name that is no file stays.
    """
    folder, path = os.path.dirname(os.path.abspath(table)), Path(os.path.abspath(image))
    if image and path.is_relative_to(folder):
        image = path.relative_to(folder).as_posix()
    elif path.is_file():
        image = path.as_posix()
    # An apostrophe, which keeps spreadsheets from taking it for a formula, would be part of the path.
    return csv_text(image if csv_text(image) == image else f"./{image}")


@dataclass(frozen=True)
class BundleScores:
    """Accuracy, log-loss and calibration error on labelled images. A field with the name of a metric
    (`dear.evaluation.metrics`) holds its value.

    Attributes:
        left_out: Images that are not counted, for the bundle was fitted on them.
        classes: Number of candidate classes.
        accuracy, top5: Share of the images whose class is ranked first, or among the first five.
        zero_shot: The accuracy of the backbone without the adapter, with the bundle's templates.
        gained, lost: Images that are right only with the adapter, and only without it.
        chance: Accuracy of guessing: 1 / classes.
        log_loss: In nats, with the bundle's temperature.
        calibration_error: Expected calibration error (fraction), with the bundle's temperature.
        confusions: The three most frequent: class, predicted class, number of images.
        per_class: Accuracy per class, for the classes that have images.
        refused: Share of the images that looks like none of the known classes; None if nothing is refused.
        let_through: Share of other images that does not.
    """

    data: str
    split: str
    images: int
    left_out: int
    classes: int
    accuracy: float = field(metadata={"title": "accuracy", "unit": "%"})
    top5: float = field(metadata={"title": "top 5", "unit": "%"})
    zero_shot: float = field(metadata={"title": "zero-shot", "unit": "%"})
    chance: float = field(metadata={"title": "chance", "unit": "%"})
    log_loss: float = field(metadata={"title": "log-loss", "unit": "nats"})
    calibration_error: float = field(metadata={"title": "calibration error", "unit": "%"})
    gained: int
    lost: int
    confusions: list[list[Any]]
    per_class: dict[str, float]
    refused: float | None = None
    let_through: float | None = None


def shown_metrics(metrics: Mapping[str, Any], decimals: int) -> dict[str, str]:
    """The metrics of a bundle as text, by their titles; ``decimals`` are those of a percentage."""
    shown = {}
    for column in fields(BundleScores):
        if column.metadata and column.name in metrics:
            value, unit = metrics[column.name], column.metadata["unit"]
            text = f"{100 * value:.{decimals}f}%" if unit == "%" else f"{value:.{decimals + 1}f} {unit}"
            shown[column.metadata["title"]] = text
    return shown


FEWEST = 20
"""Images for which a temperature is fitted without being asked for."""
WEAK_CALIBRATION = 0.1
"""Calibration error from which it is said."""


def verdict(scores: Mapping[str, Any], images: int) -> list[str]:
    """What the scores of a bundle mean, in sentences: whether it is better than zero-shot and chance, by how
    much, and what it confuses. ``scores`` has the fields of `BundleScores`.
    """
    right, chance = round(scores["accuracy"] * images), scores["chance"]
    low, high = share_interval(right, images)
    level = f"{LEVEL:.0%}"
    share = f"{right} of {images} right, {right / images:.1%} ({level}: {low:.1%} to {high:.1%})"
    lines = [f"{share}; zero-shot {scores['zero_shot']:.1%}, chance {chance:.1%}."]
    gain = (scores["gained"] - scores["lost"]) / images
    least, most = gain_interval(scores["gained"], scores["lost"], images)
    points = f"{100 * gain:+.1f} points ({level}: {100 * least:+.1f} to {100 * most:+.1f})"
    if most < 0:
        lines.insert(0, f"Worse than zero-shot: {points}.")
    elif least > 0:
        lines.append(f"Better than zero-shot: {points}.")
    elif scores["gained"] or scores["lost"]:
        lines.insert(0, f"Not clearly better than zero-shot: {points}.")
    if low <= chance:
        lines.insert(0, "Not clearly better than chance.")
    if scores["confusions"]:
        pairs = [f"{name} as {other} ({count})" for name, other, count in scores["confusions"]]
        lines.append(f"Most confused: {printable(', '.join(pairs))}.")
    if (refused := scores.get("refused")) is not None:
        low, high = share_interval(round(refused * images), images)
        line = f"{refused:.1%} ({level}: {low:.1%} to {high:.1%}) look like none of the classes"
        if (other := scores.get("let_through")) is not None:
            line += f"; of the other images {other:.1%} look like one of them"
        lines.append(f"{line}.")
    if (error := scores["calibration_error"]) > WEAK_CALIBRATION:
        lines.append(f"Probabilities are off by {100 * error:.1f} points on average.")
    return lines


def describe_choice(method: str, training: Mapping[str, Any]) -> list[str]:
    """Why a method was chosen and what it was chosen from, in lines, nothing if the user named it; and what
    images without labels were worth.
    """
    others = describe_unlabelled(training.get("unlabelled", {}))
    if "chosen" not in training:
        return others
    candidates, lines = training.get("candidates", []), [f"{method} is {training['chosen']}."]
    width = max((len(tried["method"]) for tried in candidates), default=0)
    for tried in candidates:
        found = f"not fitted: {tried['reason']}"
        if tried["accuracy"] is not None:
            low, high = (f"{100 * tried[end]:.1f}%" for end in ("low", "high"))
            found = f"{100 * tried['accuracy']:5.1f}% ({low} to {high}), {tried['seconds']:.1f} s"
        lines.append(f"  {tried['method']:{width}}  {found}")
    return [printable(line) for line in [*lines, *others]]


def describe_left_out(training: Mapping[str, Any]) -> list[str]:
    """How many training images are right that were left out, and why probabilities are not calibrated, each
    in a line if it is so.
    """
    lines, found = list[str](), training.get("left_out")
    if found:
        low, high = share_interval(found["right"], found["images"])
        share = f"{found['right']} of {plural(found['images'], 'training image')} right"
        interval = f"({LEVEL:.0%}: {low:.1%} to {high:.1%})"
        lines.append(f"Left out in turn, {share} {interval}, log-loss {found['log_loss']:.2f}.")
    if reason := training.get("uncalibrated"):
        lines.append(f"Probabilities are not calibrated: {reason}.")
    return [printable(line) for line in lines]


SELDOM = 0.75
"""Share of left-out images that classes by name alone find, below which it is said that they may find half or
fewer: beside half of the classes they find more than beside all (docs/use.md, "Other classes").
"""


def describe_names(training: Mapping[str, Any], classes: Sequence[str], names: Sequence[str]) -> list[str]:
    """What those ``names`` of classes find that have no images, and what they take from others, in a line."""
    cost = training.get("name_cost")
    if not cost or not 0 < len(names) < len(classes):
        return []
    known = "is known by its name alone" if len(names) == 1 else "are known by their names alone"
    line = f"{printable(listing(names, 3))} {known}"
    if not cost["images"]:
        return [f"{line}: too few images to measure what that finds."]
    found, taken = (f"{100 * cost[share]:.1f}%" for share in ("found", "taken"))
    tried = "Tried on left-out training images, each class by its name beside half of the others"
    warning = " In use it may find half or fewer: give it images." if cost["found"] < SELDOM else ""
    return [f"{line}. {tried}: it finds {found} of its images and takes {taken} of the others'.{warning}"]


def describe_unlabelled(gain: Mapping[str, Any]) -> list[str]:
    """What images without labels were worth, in a line; nothing without any."""
    if not gain:
        return []
    images = plural(gain["images"], "image") + " without labels"
    if "weight" not in gain:
        needed = f"{FIT_METHOD}, and two labelled images of each class: one known by its name alone has none"
        return [f"{images} not used: --unlabelled needs {needed}."]
    before, after = (f"{gain[name]:.1%}" for name in ("accuracy_before", "accuracy_after"))
    right = f"{before} to {after} right" if before != after else f"as many right ({before})"
    loss = f"log-loss {gain['before']:.2f} to {gain['after']:.2f}"
    share = f"labelled images that are left out, {right}, {loss}"
    if not gain["weight"]:
        return [f"{images} not used, for they gain nothing: {share}."]
    return [f"{images} used, at a weight of {gain['weight']:g}: {share}."]


ExportForm = Literal["onnx", "torch-export"]


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
    form: ExportForm
    outputs: tuple[str, ...]
    classes: int | None
    bytes: int
    checked: int
    difference: float
    same_best: int | None
