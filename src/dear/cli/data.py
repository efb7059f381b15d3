"""`dear data`: which data sets there are, and what is in them."""

from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from dear.cli.output import PrintableConsole, table
from dear.data.settings import DataSettings
from dear.errors import SettingsError, UnknownNameError
from dear.text import FEW, list_names, plural

if TYPE_CHECKING:
    from dear.data.check import Check
    from dear.data.sources.benchmarks import Fetched


def command_list(*, root: Path | None = None) -> dict[str, Any]:
    """List the data sets that are known by name. Any folder, table or archive of images works too.

    Args:
        root: Folder of the benchmarks, in CoOp's layout. By default the folder in the environment variable
            DEAR_DATA.
    """
    from dear.data.sources.benchmarks import benchmarks
    from dear.world.names import task_names

    folder = DataSettings(root=root).data_root()
    rows = [
        {
            "name": b.name,
            "title": b.title,
            "folder": b.folder,
            "classes": b.classes,
            "images": dict(b.published),
            "template": b.template,
            "there": None if folder is None else (folder / b.folder / b.images).is_dir(),
            "download": b.download is not None,
        }
        for b in benchmarks().values()
    ]
    return {"root": folder, "benchmarks": rows, "tasks": [*task_names()]}


def render_list(result: dict[str, Any], console: PrintableConsole) -> None:
    """Show the benchmarks as a table, and the names of the tasks."""
    yes = {True: "yes", False: "no", None: None}
    rows = []
    for b in result["benchmarks"]:
        counts = [b["images"].get(part) for part in ("train", "val", "test")]
        get = "torchvision" if b["download"] else "by hand"
        rows.append([b["name"], b["folder"], b["classes"], *counts, yes[b["there"]], get, b["template"]])
    columns = ("name", "folder", "classes", "train", "val", "test", "on disk", "get", "template")
    console.print(table(None, columns, rows))
    where = f"searched in {result['root']}" if result["root"] else "no root: give --root or set DEAR_DATA"
    console.say(f"Benchmarks: {where}. Images as published.")
    console.say(f"Tasks of the Attribute World: {', '.join(result['tasks'])}")


def command_get(name: str, *, root: Path | None = None) -> Any:
    """Download a benchmark with torchvision, into CoOp's layout, or say what to do by hand.

    Args:
        name: The name of a benchmark.
        root: Folder of the benchmarks, in CoOp's layout. By default the folder in the environment variable
            DEAR_DATA.
    """
    from dear.data.sources.benchmarks import benchmarks, fetch, find_benchmark

    benchmark = find_benchmark(name)
    if benchmark is None:
        raise UnknownNameError("benchmark", name, benchmarks())
    folder = DataSettings(root=root).data_root()
    if folder is None:
        raise SettingsError("no folder to fetch into: give --root or set the environment variable DEAR_DATA.")
    return fetch(benchmark, folder)


def render_get(result: "Fetched", console: PrintableConsole) -> None:
    """Show what was fetched and what is left to do."""
    lines = [f"{result.name} in {result.folder}"]
    lines += [f"fetched: {', '.join(result.fetched)}"] if result.fetched else []
    lines += [f"not fetched: {result.why}"] if result.why else []
    if result.by_hand:
        lines += [f"by hand, into {result.folder}:", *(f"  - {line}" for line in result.by_hand)]
    lines.append(
        f"then: dear data check {result.name} --dataset.root {quote(str(Path(result.folder).parent))}"
    )
    console.say(*lines)


MOST_LINES, MOST_NAMES = 10, 1000  # of a list, and of classes, that are shown


def command_check(
    name: str,
    more: list[str] = [],  # noqa: B006 (never changed)
    *,
    decode: bool = True,
    dataset: DataSettings = DataSettings(),
) -> Any:
    """Check a data set: counts, missing, broken and repeated files, class names, and the split.

    All faults are listed, and the exit code is 1 if there is one. It stays 0 for warnings, such as a single
    class, uneven classes, or images of the same content.

    Args:
        name: A folder of images (also with the split list of CoOp's code), a table (.csv, .tsv or .jsonl), a
            zip, tar or Parquet file, a pattern of these (train-{000..009}.tar), a Hugging Face data set
            (hf:OWNER/NAME), or the name of a benchmark.
        more: Further data that is added to the first, as by `dear fit`.
        decode: Read and compare all images. Without it only the existence of files is checked.
        dataset: How the data set is read.
    """
    from dear.cli.progress import StepProgress
    from dear.data.check import check_dataset

    with StepProgress() as progress:
        return check_dataset([name, *more], dataset, decode=decode, progress=progress)


def render_check(result: "Check", console: PrintableConsole) -> None:
    """Show the findings, the bad ones last."""
    published = result.published or {}
    rows = [
        (part, count, published.get(part), *result.per_class.get(part, (None, None)))
        for part, count in result.counts.items()
    ]
    console.say(f"{result.name} in {result.folder}: {plural(result.classes, 'class')}")
    console.print(table(None, ("split", "images", "published", "fewest a class", "most a class"), rows))
    words = {True: ", the standard one", False: ", NOT the standard one: results not comparable", None: ""}
    unreadable = len(result.broken or result.missing)
    read = f"{unreadable} cannot be read" if unreadable else "all can be read"
    if not unreadable and result.broken is None:
        read = "none was read (--decode reads them)"
    read += f"; faults of the lists: {len(result.faults)}" if result.faults else ""
    verdict = "NOT OK" if result.partly else "usable, with warnings" if result.warnings else "ok"
    names = [
        name if key.replace("_", " ").strip() == name else f"{key} is {name}"
        for key, name in zip(result.keys, result.classnames, strict=True)
    ]
    lines = [
        f"split: {result.split}{words[result.standard]}",
        f"templates: {' | '.join(result.templates)}",
        f"class names: {list_names(names, MOST_NAMES)}",
        *(f"note: {note}" for note in result.notes),
        *_listed("faults of the lists", result.faults),
        *_listed("class names that differ from the published ones", result.other_names),
        *_listed("missing files", result.missing),
        *_listed("broken files", [*(result.broken or {}).values()]),
        *_listed("images there more than once", [_joined(group) for group in result.duplicates or []]),
        *_listed("groups of images that stay together", [_joined(group) for group in result.groups or []]),
        *(f"warning: {warning}" for warning in result.warnings),
        f"{verdict}: of {plural(sum(result.counts.values()), 'image')} {read}",
    ]
    console.say(*lines)


def _joined(group: list[str]) -> str:
    """The first files of a group, and how many there are."""
    return list_names(group, FEW)


def _listed(what: str, lines: list[str]) -> list[str]:
    """The first lines of a list, and how many there are."""
    more = len(lines) - MOST_LINES
    remainder = [f"  ... and {more} more (--json has all)"] if more > 0 else []
    return (
        [f"{what}: {len(lines)}", *(f"  {line}" for line in lines[:MOST_LINES]), *remainder] if lines else []
    )
