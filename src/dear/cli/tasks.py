"""`dear tasks`: the tasks of the Attribute World, what each leaves to be learned, which known facts hold."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rich.console import Console

from dear.cli.output import progress_console, table

if TYPE_CHECKING:
    from dear.backbone.clip import Clip
    from dear.data.dataset import Dataset
    from dear.report.facts import Fact


@dataclass(frozen=True)
class Task:
    """A task. Measured are percent of training images: zero-shot on each half, a linear probe on the base
    half, and zero-shot with a constant for each class.
    """

    name: str
    classes: int
    example: str
    template: str
    shift: str
    own: str
    habits: str
    base: float | None = None
    novel: float | None = None
    probe: float | None = None
    bias_base: float | None = None
    bias_novel: float | None = None


@dataclass(frozen=True)
class Tasks:
    """The requested tasks, and the facts if they were checked."""

    tasks: list[Task]
    facts: "list[Fact] | None" = None


def command(
    *,
    tasks: list[str] | None = None,
    measure: bool = False,
    validate: Path | None = None,
    methods: list[str] | None = None,
    seeds: list[int] | None = None,
    images: Literal["check", "test"] = "check",
    model: str = "tiny",
    pretrained: str | None = None,
    device: Literal["auto", "cpu", "cuda"] = "auto",
) -> Tasks:
    """List the tasks of the Attribute World: classes, template, shift against pretraining, looks of classes.

    With --validate, check whether facts that others have reproduced with real CLIPs hold on them: it runs all
    methods but DeAR, each with its authors' training, and states each fact beside what was published. That
    takes a few minutes a task; records that are there are read, and an interrupted run resumes.

    Args:
        tasks: Tasks by name; today's if not given (to validate: the base-to-novel ones).
        measure: Also measure, on training images, zero-shot accuracy on both halves, that of a linear probe
            on the base half, and zero-shot with one constant for each class.
        validate: Check the facts, with the records of the runs in this folder.
        methods: Methods to check the facts with; all that score novel classes if not given, never DeAR.
        seeds: Seeds of the runs; 1 if not given.
        images: Images that the methods are tested on: "check", a split of its own that is meant for this,
            or the test images.
        model: Backbone to measure with: tiny, or an open_clip architecture.
        pretrained: Weights: an open_clip tag, a local file, or random:SEED.
        device: Where to compute; auto uses the GPU if there is one.
    """
    from dear.backbone.load import load_clip
    from dear.data.loading import load_dataset, load_for_checks
    from dear.data.world.tasks import downstream_names, factor_alone, task_names
    from dear.errors import SettingsError
    from dear.evaluation.headroom import headroom

    if validate is None and (methods or seeds or images != "check"):
        raise SettingsError("--methods, --seeds and --images are for --validate: give it a folder.")
    known = downstream_names() if validate else task_names()
    rows = [_row(name) for name in tasks or known]
    if not measure and validate is None:
        return Tasks(rows)
    plans = _plans(methods) if validate else []
    clip = load_clip(model, pretrained, device=device)
    rooms = {}
    for number, row in enumerate(rows):
        progress_console().print(f"measuring {row.name}")
        rooms[row.name] = found = headroom(clip, load_dataset(row.name))
        rows[number] = replace(row, **vars(found))
    if validate is None:
        return Tasks(rows)
    from dear.report.facts import check_facts

    load = load_for_checks if images == "check" else load_dataset
    datasets = [load(row.name) for row in rows]
    records = _run(clip, datasets, plans, seeds or [1], validate)
    return Tasks(rows, check_facts(records, rooms, factor_alone([*rooms])))


def _row(name: str) -> Task:
    from dear.data.world.tasks import load_task

    task = load_task(name)
    shift = ", ".join(f"{kind} {strength:g}" for kind, strength in task.test.shift)
    own = ", ".join(f"{kind} to {max(strengths):g}" for kind, strengths in task.test.own)
    habits = ", ".join(f"{factor} {share:g}" for factor, _, share in task.test.habits)
    return Task(name, len(task.classnames), task.classnames[0], task.template, shift, own, habits)


def _plans(methods: list[str] | None) -> list[Any]:
    """Plans of the methods. Raises SettingsError for DeAR, which tasks must not be set by."""
    from dear.errors import SettingsError
    from dear.evaluation.plan import Plan
    from dear.evaluation.protocols.base_to_novel import BaseToNovel
    from dear.methods.registry import METHODS, OWN, known_method

    usual = [name for name, method in METHODS.items() if method.open_vocabulary and name != OWN]
    chosen = [known_method(name) for name in methods or usual]
    if OWN in chosen:
        raise SettingsError(f"--methods: the facts are about other methods than {OWN}; leave it out.")
    plans = [Plan(name) for name in chosen]
    for plan in plans:
        BaseToNovel().check_plan(plan)
    return plans


def _run(
    clip: "Clip", datasets: "list[Dataset]", plans: list[Any], seeds: list[int], out: Path
) -> list[dict[str, Any]]:
    from dear.cli.progress import RunProgress
    from dear.evaluation.runs import run_all
    from dear.training.settings import TrainSettings

    with RunProgress(len(datasets) * len(plans) * len(seeds), TrainSettings().epochs) as progress:
        return run_all(clip, datasets, plans, seeds=seeds, out=out, progress=progress)


def render(result: Tasks, console: Console) -> None:
    """Show the tasks as a table, and the facts as another."""
    columns = ["task", "classes", "a class", "template", "shift", "own shifts", "habits"]
    rows: list[list[object]] = [
        [task.name, task.classes, task.example, task.template, task.shift, task.own, task.habits]
        for task in result.tasks
    ]
    if result.tasks[0].base is not None:
        columns = ["task", "zero-shot base", "novel", "probe base", "constants base", "constants novel"]
        rows = [[t.name, t.base, t.novel, t.probe, t.bias_base, t.bias_novel] for t in result.tasks]
    console.print(table(None, columns, rows))
    if result.facts is not None:
        verdict = {True: "holds", False: "does not hold", None: "not run"}
        console.print(
            table(
                None,
                ["", "fact", "measured", "published", ""],
                [(f.number, f.statement, f.measured, f.published, verdict[f.holds]) for f in result.facts],
            )
        )
