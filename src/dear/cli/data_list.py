"""`dear data list`: the benchmarks that are known by name, and which are present."""

from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from dear.cli.output import table


@dataclass(frozen=True)
class Known:
    """A benchmark: its folder, its contents, and how to get it.

    Attributes:
        images: Images of each split, as published.
        there: Whether its image folder is under the root; None without a root.
        download: Whether torchvision can fetch it.
    """

    name: str
    title: str
    folder: str
    classes: int
    images: dict[str, int]
    template: str
    there: bool | None
    download: bool


@dataclass(frozen=True)
class Listed:
    """The benchmarks, the root they were searched in, and the tasks of the Attribute World."""

    root: Path | None
    benchmarks: list[Known]
    tasks: list[str]


def command(*, root: Path | None = None) -> Listed:
    """List the data sets that are known by name. Any folder, CSV, JSONL or zip of images works too.

    Args:
        root: Folder of the benchmarks, in CoOp's layout; the environment variable DEAR_DATA if not given.
    """
    from dear.data.settings import DataSettings
    from dear.data.sources.benchmarks import benchmarks
    from dear.data.world.names import task_names

    place = DataSettings(root=root).data_root()
    known = [
        Known(
            name=b.name,
            title=b.title,
            folder=b.folder,
            classes=b.classes,
            images=dict(b.published),
            template=b.template,
            there=None if place is None else (place / b.folder / b.images).is_dir(),
            download=b.download is not None,
        )
        for b in benchmarks().values()
    ]
    return Listed(place, known, [*task_names()])


def render(result: Listed, console: Console) -> None:
    """Show the benchmarks as a table, and the names of the tasks."""
    yes = {True: "yes", False: "no", None: None}
    rows = [
        (b.name, b.folder, b.classes, *(b.images.get(p) for p in ("train", "val", "test")), yes[b.there],
         "torchvision" if b.download else "by hand", b.template)
        for b in result.benchmarks
    ]  # fmt: skip
    columns = ("name", "folder", "classes", "train", "val", "test", "there", "get", "template")
    console.print(table(None, columns, rows), markup=False)
    where = f"searched in {result.root}" if result.root else "no root: give --root or set DEAR_DATA"
    console.print(f"Benchmarks: {where}. Images as published.", markup=False)
    console.print(f"Tasks of the Attribute World: {', '.join(result.tasks)}", markup=False)
