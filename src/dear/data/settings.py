"""Settings of data sets. Cheap to import: commands can show them without loading torch."""

import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from string import Formatter
from typing import Literal, Self

from dear.errors import DataError, SettingsError
from dear.limits import at_most
from dear.reading.files import ReadingError, expanded, read_lines
from dear.reading.typed import require_range, shown

Sampling = Literal["dear", "coop"]
"""How few-shot images are drawn: see `dear.data.fewshot`."""

Layout = Literal["auto", "classes", "domains"]

MAX_WORKERS = 8
MOST_THREADS = 256  # that a user may ask for
LEAST_SEED, MOST_SEED = -(2**63), 2**64 - 1
"""Of the seeds that torch's generators accept."""


@dataclass(frozen=True)
class DataSettings:
    """How data sets are read; the defaults are those of the benchmarks.

    Attributes:
        root: Folder of the benchmarks, in CoOp's layout; the environment variable DEAR_DATA by default.
        template: Prompt with one {} for the class name, in place of the data set's own. Several prompts,
            which are averaged, are separated by | or given as a text file, one per line.
        classnames: File of class names: a JSON list or mapping, a CSV (folder,name) or CoOp's classnames.txt.
        label: Column of the classes, for a Hugging Face data set with several.
        columns: Columns of a table or a data frame with other names, as path=Image,label=Species.
        split_seed: Seed of the split made for a data set that has none.
        test_share: Share of each class used for testing in that split, for images without any split: 0 for
            none, which `dear fit` trains on all of, 1 for all, where nothing is trained on. By default 0.3,
            in `dear eval` 1 and in `dear review` 0.
        group: What belongs together: a split made here does not part it, nor do the folds that calibrate and
            choose. A column of a table, or a regular expression whose match in a file's path is the group, as
            clip_[0-9]+; near-duplicates too, unless it is none.
        least_train: Images that this split leaves of each class to train on, though fewer remain to test on;
            `dear fit` sees to it that there are as many as shots.
        layout: What the folders in a folder of images are: classes, or domains (art_painting, photo) with
            folders of classes in them; auto for domains if they hold the same folders.
        sampling: Few-shot rule: dear (fewer shots are a subset of more) or coop (as in the CoOp code base).
        allow_fewer: Take all images of a class that has fewer images than shots.
        balance: Repeat the images of such a class, each as often as the others or once more, so that every
            class has as many shots.
        broken: What to do with unreadable images: stop, or skip and name them (all images are checked
            first). By default fit and eval skip them, and all else stops.
        short_side: Reduce larger training images to this short side, in pixels, when they are read: more of
            them stay in memory, and large photographs train faster. By default they are used as they are, as
            test images always are.
        cache: Folder of caches and recorded splits; by default the environment variable DEAR_CACHE or the
            user's cache folder.
        workers: Decoding threads; 0 for one per processor, at most 8.
    """

    root: Path | None = None
    template: str | None = None
    classnames: Path | None = None
    label: str | None = None
    columns: str | None = None
    split_seed: int = 1
    test_share: float | None = None
    group: str | None = None
    least_train: int = 1
    layout: Layout = "auto"
    sampling: Sampling = "dear"
    allow_fewer: bool = False
    balance: bool = False
    broken: Literal["stop", "skip"] | None = None
    short_side: int | None = None
    cache: Path | None = None
    workers: int = 0

    def __post_init__(self) -> None:
        require_range(self, "test_share", maximum=1)
        require_range(self, "least_train", "short_side", minimum=1)
        require_range(self, "workers", maximum=MOST_THREADS)
        try:
            re.compile(self.group or "")
        except re.error as error:
            raise SettingsError(
                f"group {self.group!r} is neither a column nor a pattern: {error}."
            ) from error
        self.named_columns  # noqa: B018 (refuses wrong ones)

    @property
    def named_columns(self) -> dict[str, str]:
        """The column for each of path, label and split that the user names. Raises SettingsError."""
        pairs = [part.partition("=") for part in (self.columns or "").split(",") if part.strip()]
        named = {kind.strip(): name.strip() for kind, _, name in pairs}
        if any(not name for name in named.values()) or {*named} - {"path", "label", "split"}:
            raise SettingsError(f"columns is {self.columns!r}: write it as path=Image,label=Species.")
        return named

    def skip_broken(self) -> Self:
        """These settings, by which unreadable images are skipped unless the user said otherwise."""
        return self if self.broken else replace(self, broken="skip")

    def with_test_share(self, share: float) -> Self:
        """These settings, with this share of test images unless the user gave another."""
        return self if self.test_share is not None else replace(self, test_share=share)

    def require_short_side(self, size: int) -> None:
        """Raise SettingsError for a short side below the ``size`` that a model sees."""
        if self.short_side is not None and self.short_side < size:
            raise SettingsError(
                f"short_side is {self.short_side}, but the model sees {size} pixels: give at least {size}, "
                "or leave it out."
            )

    @property
    def threads(self) -> int:
        return self.workers or min(MAX_WORKERS, os.cpu_count() or 1)

    def data_root(self) -> Path | None:
        """The folder of the benchmarks, or None if neither setting nor environment names one."""
        root = self.root or os.environ.get("DEAR_DATA")
        return expanded(root) if root else None

    def cache_folder(self) -> Path:
        """The cache folder, which need not exist."""
        usual = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "dear"
        return expanded(self.cache or os.environ.get("DEAR_CACHE") or usual)

    def templates(self) -> tuple[str, ...] | None:
        """The prompts to use, or None for the data set's own. Raises DataError for an invalid prompt."""
        if self.template is None:
            return None
        if "{" not in self.template:
            try:
                texts = read_lines(expanded(self.template))
            except ReadingError as error:
                raise DataError(
                    f"the template {shown(self.template)} has no {{}} for the class name and is not a "
                    f"text file ({error.reason})."
                ) from error
        else:
            texts = self.template.split("|")
        return checked_templates([text.strip() for text in texts if text.strip()], self.template)


def checked_templates(texts: list[str], source: str) -> tuple[str, ...]:
    """The texts as templates. Raises DataError unless each has exactly one {}, for the class name."""
    if not texts:
        raise DataError(f"{source!r} contains no template: write one like 'a photo of a {{}}.'.")
    for text in texts:
        at_most("class_name", len(text), f"a template that begins with {text[:40]!r}")
        try:
            fields = [field for _, *field in Formatter().parse(text) if field[0] is not None]
        except ValueError:
            fields = []
        if fields != [["", "", None]]:  # a width would allocate memory: {:>1000000000}
            raise DataError(f"the template {shown(text)} needs exactly one {{}}, for the class name.")
    return tuple(texts)


def checked_seed(seed: int) -> int:
    """The seed, unchanged. Raises SettingsError if torch does not accept it."""
    if not LEAST_SEED <= seed <= MOST_SEED:
        raise SettingsError(f"the seed is {shown(seed)}: it must be from {LEAST_SEED} to {MOST_SEED}.")
    return seed
