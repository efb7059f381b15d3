"""Check a data set: counts, missing, broken and repeated files, class names, the origin of its split."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from dear.backbone.prompts import ClipReader, describe_cut_prompts
from dear.data.fewshot import uneven
from dear.data.findings import Check
from dear.data.image_check import broken_images, duplicate_warnings, missing_images, same_images
from dear.data.loading import read_listing
from dear.data.settings import DataSettings
from dear.data.sources.benchmarks import benchmarks, published_names
from dear.data.sources.listing import Listing, single_class, with_spaces
from dear.errors import DataError, SettingsError


def check_dataset(
    name_or_path: str,
    settings: DataSettings,
    *,
    decode: bool = True,
    progress: Callable[[int, int], None] = lambda _done, _all: None,
) -> Check:
    """Read a data set's lists, look for its files and, with `decode`, read every image and compare them.

    Raises the errors of `read_listing` if nothing can be read from the lists.
    """
    faults = dict[str, None]()  # an ordered set of texts: an error keeps a traceback

    def report(fault: DataError) -> None:
        faults[str(fault)] = None

    try:
        listing = read_listing(name_or_path, replace(settings, broken="stop"), report=report)
    except DataError as last:
        if not faults:
            raise
        report(last)
        listing = Listing(name_or_path, Path(name_or_path), (), (), {}, "none", templates=())
    missing = missing_images(listing)
    broken = broken_images(listing, settings, progress) if decode else None
    benchmark = benchmarks()[listing.name] if listing.benchmark else None
    other_names = _other_names(listing)
    duplicates = same_images(listing, settings.threads) if decode else None
    warnings = [*_class_warnings(listing), *duplicate_warnings(listing, duplicates or [])]
    warnings += _cut_names(listing)
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
        broken=broken,
        other_names=other_names,
        templates=[*listing.templates],
        notes=[*listing.notes],
        faults=[*faults],
        duplicates=duplicates,
        warnings=warnings,
        ok=not (faults or missing or broken or warnings),
    )


def _range(listing: Listing, part: str) -> tuple[int, int]:
    images = Counter(row.label for row in listing.splits[part])
    counts = [images[label] for label in range(len(listing.classnames))]
    return min(counts, default=0), max(counts, default=0)


def _class_warnings(listing: Listing) -> Iterator[str]:
    if len(listing.classnames) == 1:
        yield single_class(listing)
    for part in ("train", "test"):
        labels = [row.label for row in listing.splits.get(part, ())]
        if warning := uneven(labels, [with_spaces(name) for name in listing.classnames]):
            yield f"{part}: {warning}"
            break  # the test split is likely to be alike


def _cut_names(listing: Listing) -> Iterator[str]:
    """A warning of class names that CLIP's text tower reads a part of, or takes for each other."""
    names = [with_spaces(name) for name in listing.classnames]
    prompts = [[template.format(name) for name in names] for template in listing.templates]
    try:
        if warning := describe_cut_prompts(ClipReader(), names, prompts):
            yield warning
    except SettingsError as error:
        yield str(error)


def _other_names(listing: Listing) -> list[str]:
    if not listing.benchmark:
        return []
    published = published_names(benchmarks()[listing.name])
    if len(published) != len(listing.classnames):
        return [f"{len(listing.classnames)} classes, published {len(published)}"]
    pairs = enumerate(zip(listing.classnames, published, strict=True))
    return [
        f"{label}: {name!r}, published {original!r}" for label, (name, original) in pairs if name != original
    ]
