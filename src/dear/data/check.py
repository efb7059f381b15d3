"""Check a data set: counts, missing, broken and repeated files, class names, the origin of its split."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dear.backbone.prompts import ClipReader, describe_cut_prompts
from dear.data.fewshot import uneven
from dear.data.image_check import contradictions, describe_leak, duplicate_warnings
from dear.data.images.video import file_of
from dear.data.loading import read_listing
from dear.data.scan import scan
from dear.data.settings import DataSettings
from dear.data.sources.benchmarks import benchmarks, published_names
from dear.data.sources.class_names import with_spaces
from dear.data.sources.listing import Listing, describe_misuse, named_only, single_class
from dear.data.sources.splits import is_drawn
from dear.errors import DataError, SettingsError, collected_faults, fault
from dear.progress import Progress, silent
from dear.reading.files import file_size
from dear.reading.remote import within

FITS_ALL = "this split is that of dear run: dear fit trains on all images, and cross-validates"


@dataclass(frozen=True)
class Check:
    """The result of checking a data set; counts are of images.

    Attributes:
        keys: the folders or labels of the classes, in the order of their names.
        published: counts of the published split, for benchmarks.
        per_class: the smallest and largest number of images per class in each split.
        missing: files that are listed but do not exist.
        broken: files that cannot be read, with the reason; includes missing ones. None if not checked.
        faults: errors in the lists themselves, one line each; the other fields leave out faulty entries.
        other_names: class names that differ from the published ones, one line each.
        standard: whether the split is the one used for published results, judged by its source, counts and
            class names; None for data that is not a benchmark.
        duplicates: groups of files with the same content; None if not looked for.
        groups: images that are kept on one side of a split, as near-duplicates or by --dataset.group; None if
            not looked for.
        warnings: what the data can be used with but should be looked at, one line each: a single class,
            uneven classes, repeated images.
        ok: no faults, no missing or broken files, no warnings.
    """

    name: str
    folder: str
    split: str
    standard: bool | None
    classes: int
    classnames: list[str]
    keys: list[str]
    counts: dict[str, int]
    published: dict[str, int] | None
    per_class: dict[str, tuple[int, int]]
    missing: list[str]
    broken: dict[str, str] | None
    other_names: list[str]
    templates: list[str]
    notes: list[str]
    faults: list[str]
    duplicates: list[list[str]] | None
    groups: list[list[str]] | None
    warnings: list[str]
    ok: bool

    @property
    def partly(self) -> bool:
        """Whether the exit code reports a partial result: warnings alone do not."""
        return bool(self.faults or self.missing or self.broken)


def check_dataset(
    names: str | Sequence[str],
    settings: DataSettings,
    *,
    decode: bool = True,
    progress: Progress = silent,
) -> Check:
    """Read a data set's lists, look for its files and, with `decode`, read every image and compare them. Of
    several ``names`` the later ones are added to the first.

    Raises the errors of `read_listing` if nothing can be read from the lists.
    """
    names, stop = [names] if isinstance(names, str) else names, replace(settings, broken="stop")
    with collected_faults() as faults:
        try:
            listing = read_listing(names, stop)
        except DataError as last:
            if not faults:
                raise
            fault(last)
            listing = Listing(names[0], Path(names[0]), (), (), {}, "none", templates=())
        missing = [path for path in listing.paths if file_size(file_of(within(listing.folder, path))) is None]
        scanned = scan(listing, stop, decoded=decode, hashed=is_drawn(listing, stop), progress=progress)
        listing, duplicates = scanned.listing, scanned.copies if decode else None
        for line in contradictions(listing, duplicates or []):
            fault(DataError(f"one picture, several labels: {line}. Leave one copy, or give all one label."))
    is_of_run = scanned.has_drawn and settings.test_share is None and bool(listing.splits.get("test"))
    benchmark = benchmarks()[listing.name] if listing.benchmark else None
    other_names = _compare_names(listing)
    warnings = [*_class_warnings(listing), *duplicate_warnings(listing, duplicates or [])]
    warnings += [*describe_leak(listing, scanned.groups), *describe_misuse(listing)]
    if scanned.has_drawn and listing.splits.get("train") and not listing.splits.get("test"):
        warnings.append("no image is left to test on: each class is one image or one group of images")
    return Check(
        name=listing.name,
        folder=str(listing.folder),
        split=listing.origin,
        standard=(listing.standard and not other_names) if benchmark else None,
        classes=len(listing.classnames),
        classnames=[with_spaces(name) for name in listing.classnames],
        keys=[*listing.keys],
        counts={part: len(rows) for part, rows in listing.splits.items()},
        published=dict(benchmark.published) if benchmark else None,
        per_class={part: _range(listing, part) for part, rows in listing.splits.items() if rows},
        missing=missing,
        broken=dict(scanned.faults) if decode else None,
        other_names=other_names,
        templates=[*listing.templates],
        notes=[*listing.notes, *named_only(listing), *([FITS_ALL] if is_of_run else [])],
        faults=[*faults],
        duplicates=duplicates,
        groups=_members(scanned.groups) if decode else None,
        warnings=warnings,
        ok=not (faults or missing or scanned.faults or warnings),
    )


def _members(groups: Mapping[str, str]) -> list[list[str]]:
    """The paths of each group, the largest first."""
    members = dict[str, list[str]]()
    for path, group in groups.items():
        members.setdefault(group, []).append(path)
    return sorted(members.values(), key=len, reverse=True)


def _range(listing: Listing, part: str) -> tuple[int, int]:
    """The fewest and the most images of a class in a split."""
    images = Counter(row.label for row in listing.splits[part])
    counts = [images[label] for label in range(len(listing.classnames))]
    return min(counts, default=0), max(counts, default=0)


def _class_warnings(listing: Listing) -> Iterator[str]:
    """Warnings of a single class, of uneven ones, and of names that CLIP reads a part of or takes for each
    other.
    """
    names = [with_spaces(name) for name in listing.classnames]
    if len(names) == 1:
        yield single_class(listing)
    for part in ("train", "test"):
        if warning := uneven([row.label for row in listing.splits.get(part, ())], names):
            yield f"{part}: {warning}"
            break  # the test split is likely to be alike
    prompts = [[template.format(name) for name in names] for template in listing.templates]
    try:
        if warning := describe_cut_prompts(ClipReader(), names, prompts):
            yield warning
    except SettingsError as error:
        yield str(error)


def _compare_names(listing: Listing) -> list[str]:
    """The class names of a benchmark that are not the published ones."""
    if not listing.benchmark:
        return []
    published = published_names(benchmarks()[listing.name])
    if len(published) != len(listing.classnames):
        return [f"{len(listing.classnames)} classes, published {len(published)}"]
    pairs = zip(listing.classnames, published, strict=True)
    return [f"{i}: {name!r}, published {other!r}" for i, (name, other) in enumerate(pairs) if name != other]
