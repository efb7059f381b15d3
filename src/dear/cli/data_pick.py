"""`dear data pick`: which images a few-shot run trains on, as JSON."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from dear.data.settings import DataSettings


@dataclass(frozen=True)
class Picked:
    """A pick as stored in a run's record, with the data set it belongs to."""

    dataset: str
    identity: str
    classes: int
    pick: dict[str, Any]
    written: Path | None


def command(
    name: str,
    *,
    shots: int = 16,
    seed: int = 1,
    classes: Literal["all", "base", "novel"] = "all",
    root: Path | None = None,
    out: Path | None = None,
    dataset: DataSettings = DataSettings(),  # noqa: B008 (frozen, and its fields become options)
) -> Picked:
    """Draw the few-shot images of a seed, as a run does.

    Args:
        name: A data set: a task's or benchmark's name, a folder, a CSV or JSONL file, or a zip.
        shots: Training images per class.
        seed: Seed of the pick.
        classes: Which classes: all, the first half (base) or the rest (novel).
        root: Folder of the benchmarks, in CoOp's layout; the environment variable DEAR_DATA if not given.
        out: JSON file to write the pick to.
        dataset: How the data set is read, and the rule of the pick (--dataset.sampling).
    """
    from dear.data.names import check_name

    check_name(name, replace(dataset, root=root or dataset.root))
    from dear.data.fewshot import base_novel, draw_few  # loads torch: a wrong name is refused without it
    from dear.data.loading import load_dataset
    from dear.writing.files import write_json

    data = load_dataset(name, replace(dataset, root=root or dataset.root))
    part = None if classes == "all" else base_novel(len(data.classnames))[classes == "novel"]
    pick, _ = draw_few(data, shots, seed, part)
    count = len(part or data.classnames)
    record = pick.to_json()
    if out is not None:
        write_json(out, {"dataset": data.name, "identity": data.identity, "classes": classes, **record})
    return Picked(data.name, data.identity, count, record, out)


def render(result: Picked, console: Console) -> None:
    """Show the files, or the indices if there are no files."""
    pick = result.pick
    console.print(
        f"{result.dataset}: {len(pick['indices'])} images of {result.classes} classes, "
        f"sampling {pick['sampling']}, seed {pick['seed']}",
        markup=False,
    )
    console.print("\n".join(map(str, pick["files"] or pick["indices"])), markup=False, soft_wrap=True)
    if result.written:
        console.print(f"written to {result.written}", markup=False)
