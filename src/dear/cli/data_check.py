"""`dear data check`: which parts of a data set are present, and what is wrong with them."""

from dataclasses import replace
from pathlib import Path

from rich.console import Console

from dear.cli.output import progress_console, table
from dear.data.findings import Check
from dear.data.settings import DataSettings

SHOWN = 10


def command(
    name: str,
    *,
    root: Path | None = None,
    decode: bool = True,
    dataset: DataSettings = DataSettings(),  # noqa: B008 (frozen, and its fields become options)
) -> Check:
    """Report counts, missing, broken and repeated files, class names, and whether the split is standard.

    Continues after a fault and lists them all; the exit code is 1 if there is one. Warnings (a single class,
    uneven classes, images of the same content) do not change it.

    Args:
        name: A benchmark's name, a folder of images, a CSV or JSONL file, or a zip.
        root: Folder of the benchmarks, in CoOp's layout; the environment variable DEAR_DATA if not given.
        decode: Read and compare all images; without it only the existence of files is checked.
        dataset: How the data set is read.
    """
    from rich.progress import Progress

    from dear.data.check import check_dataset

    console = progress_console()
    with Progress(console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task("reading images", total=None)
        return check_dataset(
            name,
            replace(dataset, root=root or dataset.root),
            decode=decode,
            progress=lambda done, images: bar.update(task, completed=done, total=images),
        )


def render(result: Check, console: Console) -> None:
    """Show the findings, the bad ones last."""
    published = result.published or {}
    rows = [
        (part, count, published.get(part), *result.per_class.get(part, (None, None)))
        for part, count in result.counts.items()
    ]
    console.print(f"{result.name} in {result.folder}: {result.classes} classes", markup=False)
    console.print(table(None, ("split", "images", "published", "fewest a class", "most a class"), rows))
    lines = [f"split: {result.split}{_standard(result.standard)}"]
    lines += [f"templates: {' | '.join(result.templates)}", f"class names: {', '.join(result.classnames)}"]
    lines += [f"note: {note}" for note in result.notes]
    lines += _some("faults of the lists", result.faults)
    lines += _some("class names that differ from the published ones", result.other_names)
    lines += _some("missing files", result.missing)
    lines += _some("broken files", [*(result.broken or {}).values()])
    looked = (
        "every image was read" if result.broken is not None else "images were not read (--decode reads them)"
    )
    lines += [f"warning: {one}" for one in result.warnings]
    verdict = "NOT OK" if result.partly else "usable, with warnings" if result.warnings else "ok"
    lines.append(f"{verdict}: {looked}")
    console.print("\n".join(lines), markup=False, soft_wrap=True)


def _standard(standard: bool | None) -> str:
    words = {True: ", the standard one", False: ", NOT the standard one: results not comparable", None: ""}
    return words[standard]


def _some(what: str, found: list[str]) -> list[str]:
    if not found:
        return []
    rest = [f"  ... and {len(found) - SHOWN} more (--json has all)"] if len(found) > SHOWN else []
    return [f"{what}: {len(found)}", *(f"  {one}" for one in found[:SHOWN]), *rest]
