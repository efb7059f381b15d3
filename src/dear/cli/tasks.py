"""`dear tasks`: the tasks of the Attribute World, and what each leaves to be learned."""

from dataclasses import dataclass, replace
from typing import Literal

from rich.console import Console

from dear.cli.output import progress_console, table


@dataclass(frozen=True)
class Task:
    """A task; `base`, `novel` (zero-shot) and `probe` are percent of training images, if measured."""

    name: str
    classes: int
    example: str
    template: str
    shift: str
    base: float | None = None
    novel: float | None = None
    probe: float | None = None


@dataclass(frozen=True)
class Tasks:
    """The requested tasks."""

    tasks: list[Task]


def command(
    *,
    tasks: list[str] | None = None,
    measure: bool = False,
    model: str = "tiny",
    pretrained: str | None = None,
    device: Literal["auto", "cpu", "cuda"] = "auto",
) -> Tasks:
    """List the tasks of the Attribute World: classes, template, shift against pretraining.

    Args:
        tasks: Tasks by name; all if not given.
        measure: Also measure, on training images, zero-shot accuracy on both halves, and that of
            a linear probe on the base half: what a task leaves to be learned.
        model: Backbone to measure with: tiny, or an open_clip architecture.
        pretrained: Weights: an open_clip tag, a local file, or random:SEED.
        device: Where to compute; auto uses the GPU if there is one.
    """
    from dear.backbone.load import load_clip
    from dear.data.loading import load_dataset
    from dear.data.world.tasks import load_task, task_names
    from dear.evaluation.headroom import headroom

    rows = []
    for name in tasks or task_names():
        task = load_task(name)
        shift = ", ".join(f"{kind} {strength:g}" for kind, strength in task.test.shift)
        rows.append(Task(name, len(task.classnames), task.classnames[0], task.template, shift))
    if measure:
        clip = load_clip(model, pretrained, device=device)
        for number, row in enumerate(rows):
            progress_console().print(f"measuring {row.name}")
            found = headroom(clip, load_dataset(row.name))
            rows[number] = replace(row, base=found.base, novel=found.novel, probe=found.probe)
    return Tasks(rows)


def render(result: Tasks, console: Console) -> None:
    """Show the tasks as a table."""
    columns = ["task", "classes", "a class", "template", "shift"]
    rows: list[list[object]] = [
        [task.name, task.classes, task.example, task.template, task.shift] for task in result.tasks
    ]
    if result.tasks[0].base is not None:
        columns += ["zero-shot base", "zero-shot novel", "probe base"]
        rows = [
            [*row, task.base, task.novel, task.probe] for row, task in zip(rows, result.tasks, strict=True)
        ]
    console.print(table(None, columns, rows))
