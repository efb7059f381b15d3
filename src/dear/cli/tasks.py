"""`dear tasks`: the tasks of the Attribute World."""

from dataclasses import dataclass

from rich.console import Console

from dear.cli.output import table


@dataclass(frozen=True)
class Task:
    """A task: an example of its classes, its template, and how its images differ from pretraining."""

    name: str
    classes: int
    example: str
    template: str
    shift: str
    own: str
    habits: str


@dataclass(frozen=True)
class Tasks:
    """The requested tasks."""

    tasks: list[Task]


def command(*, tasks: list[str] | None = None) -> Tasks:
    """List the tasks of the Attribute World: classes, template, shift against pretraining, looks of classes.

    Args:
        tasks: Tasks by name; all if not given.
    """
    from dear.data.world.tasks import task_names

    return Tasks([_row(name) for name in tasks or task_names()])


def _row(name: str) -> Task:
    from dear.data.world.tasks import load_task

    task = load_task(name)
    shift = ", ".join(f"{kind} {strength:g}" for kind, strength in task.test.shift)
    own = ", ".join(f"{kind} to {max(strengths):g}" for kind, strengths in task.test.class_shifts)
    habits = ", ".join(f"{factor} {share:g}" for factor, _, share in task.test.habits)
    return Task(name, len(task.classnames), task.classnames[0], task.template, shift, own, habits)


def render(result: Tasks, console: Console) -> None:
    """Show the tasks as a table."""
    columns = ["task", "classes", "a class", "template", "shift", "own shifts", "habits"]
    rows: list[list[object]] = [
        [task.name, task.classes, task.example, task.template, task.shift, task.own, task.habits]
        for task in result.tasks
    ]
    console.print(table(None, columns, rows))
