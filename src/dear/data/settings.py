"""Settings of data sets. Cheap to import: commands can show them without loading torch."""

import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from string import Formatter
from typing import Annotated, Literal, Self

from dear.errors import DataError, SettingsError
from dear.limits import require_at_most
from dear.reading.files import ReadingError, expanded, read_lines
from dear.reading.plain import split_list
from dear.reading.typed import PositiveInt, Range, Seed, Share, check_fields, check_value, shown

Sampling = Literal["dear", "coop"]
"""How few-shot images are drawn: see `dear.data.fewshot`."""

Layout = Literal["auto", "classes", "domains"]

MAX_WORKERS = 8
MOST_THREADS = 256  # that a user may ask for
Frames = Annotated[int, Range(1, 1000)]  # of a video


@dataclass(frozen=True)
class DataSettings:
    """How data sets are read; the defaults are those of the benchmarks.

    Attributes:
        root: Folder of the benchmarks, in CoOp's layout. By default the folder in the environment variable
            DEAR_DATA.
        template: Prompt with one {} for the class name, in place of the data set's own. To average several
            prompts, separate them by | or give a text file with one per line.
        classnames: File of class names: a JSON list or mapping, a CSV file (folder,name), or CoOp's
            classnames.txt.
        columns: Names of the columns of a table or a data frame, if they are not path, label and split, as
            path=Image,label=Species. For a Hugging Face data set with several columns of classes, the one to
            use, as label=fine_label.
        split_seed: Seed of the split that is made if the data has none.
        test_share: Share of each class that is used for testing, if the data has no split. With 0, nothing is
            for testing; with 1, nothing is for training. By default 0.3, in `dear eval` 1, in `dear review`
            0, and in `dear fit` 0 unless the method is trained in steps.
        group: Which images belong together: the name of a column of a table, or a regular expression whose
            match in a file's path is the group, as clip_[0-9]+. A split that is made here keeps a group on
            one side, and images of a group are left out together. Near-duplicates are kept together too,
            unless the option is none.
        groups: The same for single data sets of `dear run`, by the names of the data sets, as
            clips=clip_[0-9]+,frames.csv=site. Other data sets have the group of all.
        least_train: Fewest training images of a class in a split that is made here, even if fewer images
            remain for testing. `dear fit` raises it to the number of shots.
        layout: What the folders in a folder of images are: classes, or domains (art_painting, photo), which
            have folders of classes. With auto they are domains if they all have the same folders.
        sampling: How few-shot images are drawn: dear (fewer shots are a subset of more), or coop (as in
            CoOp's code).
        allow_fewer: Accept a class that has fewer images than shots, and take all of them.
        balance: Repeat the images of smaller classes, as evenly as possible, until every class has as many as
            shots, or without shots as many as the largest class.
        broken: What to do with unreadable images: stop, or skip and name them. All images are checked first.
            By default fit, refit, review, eval, compare, drift and report-card skip them, and other commands
            stop.
        frames: Frames to read of each video in a folder or a table, evenly spaced. Each is an image, and
            those of a video belong together. This needs the extra `video`. By default videos are left out.
        short_side: Reduce training images whose short side is longer than this, in pixels, when they are
            read. More images then stay in memory, and training is faster. Test images are never reduced.
        cache: Folder of caches and recorded splits. By default the folder in the environment variable
            DEAR_CACHE, or else the user's cache folder.
        workers: Threads that decode images; 0 means one per processor, at most 8.
    """

    root: Path | None = None
    template: str | None = None
    classnames: Path | None = None
    columns: str | None = None
    split_seed: int = 1
    test_share: Share | None = None
    group: str | None = None
    groups: str | None = None
    least_train: PositiveInt = 1
    layout: Layout = "auto"
    sampling: Sampling = "dear"
    allow_fewer: bool = False
    balance: bool = False
    broken: Literal["stop", "skip"] | None = None
    frames: Frames | None = None
    short_side: PositiveInt | None = None
    cache: Path | None = None
    workers: Annotated[int, Range(0, MOST_THREADS)] = 0

    def __post_init__(self) -> None:
        check_fields(self)
        for group in (self.group, *self.named_groups.values()):
            try:
                re.compile(group or "")
            except re.error as error:
                raise SettingsError(f"group {group!r} is neither a column nor a pattern: {error}.") from error
        self.named_columns  # noqa: B018 (refuses wrong ones)

    @property
    def named_columns(self) -> dict[str, str]:
        """The column for each of path, label and split that the user names. Raises SettingsError."""
        pairs = [part.partition("=") for part in (self.columns or "").split(",") if part.strip()]
        named = {kind.strip(): name.strip() for kind, _, name in pairs}
        if any(not name for name in named.values()) or {*named} - {"path", "label", "split"}:
            raise SettingsError(f"columns is {self.columns!r}: write it as path=Image,label=Species.")
        return named

    @property
    def named_groups(self) -> dict[str, str]:
        """The group of single data sets by name. Raises SettingsError."""
        try:
            pairs = [part.partition("=") for part in split_list(self.groups or "")]
        except ValueError:
            pairs = [("", "", "")]
        named = {name.strip(): group.strip() for name, _, group in pairs}
        if not all((*named, *named.values())) or len(named) < len(pairs):
            raise SettingsError(
                f"groups is {self.groups!r}: write each data set once, as clips=clip_[0-9]+,frames.csv=site."
            )
        return named

    def of_dataset(self, name: str) -> Self:
        """The settings of a data set of several: those of all, with its own group if ``groups`` names it, by
        its name or by the last part of its path.
        """
        named = self.named_groups
        own = named.get(name, named.get(Path(name).name))
        return replace(self, group=self.group if own is None else own, groups=None)

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
        require_at_most("class_name", len(text), f"a template that begins with {text[:40]!r}")
        try:
            fields = [field for _, *field in Formatter().parse(text) if field[0] is not None]
        except ValueError:
            fields = []
        if fields != [["", "", None]]:  # a width would allocate memory: {:>1000000000}
            raise DataError(f"the template {shown(text)} needs exactly one {{}}, for the class name.")
    return tuple(texts)


def checked_seed(seed: int) -> int:
    """The seed, unchanged. Raises SettingsError if it is none."""
    check_value("seed", seed, Seed)
    return seed
