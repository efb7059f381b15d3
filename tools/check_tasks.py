"""Measure what each task of the Attribute World leaves to be learned, and with --validate check whether facts
that others have reproduced with real CLIPs hold on the tasks: `python -m tools.check_tasks`, from a checkout.

Measured on training images: zero-shot accuracy on both halves, that of a linear probe on the base half, and
zero-shot with one constant for each class. To validate, all methods but DeAR and DeAR+ are run, each with its
authors' training, and each fact is stated beside what was published. That takes a few minutes a task, and an
hour or more a large task; records that are there are read, and an interrupted run resumes.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dear.backbone.clip import Clip
from dear.backbone.load import load_clip
from dear.cli.output import PrintableConsole, progress_console, table
from dear.cli.progress import RunProgress
from dear.data.dataset import Dataset
from dear.data.loading import load_dataset, load_for_checks
from dear.data.world.tasks import downstream_names, factor_alone
from dear.errors import SettingsError
from dear.evaluation.plan import Plan
from dear.evaluation.protocols.base_to_novel import BaseToNovel
from dear.evaluation.runs import run_all
from dear.methods.registry import METHODS, known_method, methods_with_roles
from tools import end_with
from tools.facts import check_facts
from tools.headroom import headroom


def main(words: Sequence[str] | None = None) -> None:
    """Print a table of what was measured, and one of the facts."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", type=_names, help="tasks; the base-to-novel ones by default")
    parser.add_argument("--validate", type=Path, help="check the facts, with the records in this folder")
    parser.add_argument("--methods", type=_names, help="methods to check with; never DeAR or DeAR+")
    parser.add_argument("--seeds", type=_names, default=["1"])
    parser.add_argument("--images", choices=("check", "test"), default="check", help="images to test on")
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--pretrained")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    options = parser.parse_args(words)
    plans = _plans(options.methods) if options.validate else []
    names = options.tasks or downstream_names()
    clip = load_clip(options.model, options.pretrained, device=options.device)
    rooms = {}
    for name in names:
        progress_console().print(f"measuring {name}")
        rooms[name] = headroom(clip, load_dataset(name))
    columns = ["task", "zero-shot base", "novel", "probe base", "constants base", "constants novel"]
    console = PrintableConsole(highlight=False)
    console.print(table(None, columns, [[name, *vars(room).values()] for name, room in rooms.items()]))
    if not options.validate:
        return
    load = load_for_checks if options.images == "check" else load_dataset
    seeds = [int(seed) for seed in options.seeds]
    records = _run(clip, [load(name) for name in names], plans, seeds, options.validate)
    facts = check_facts(records, rooms, factor_alone([*rooms]))
    verdict = {True: "holds", False: "does not hold", None: "not run"}
    rows = [(f.number, f.statement, f.measured, f.published, verdict[f.holds]) for f in facts]
    console.print(table(None, ["", "fact", "measured", "published", ""], rows))


def _names(value: str) -> list[str]:
    return value.split(",")


def _plans(methods: Sequence[str] | None) -> list[Plan]:
    """Plans of the methods. Raises SettingsError for DeAR and DeAR+, which tasks must not be set by."""
    judged = methods_with_roles()
    others = [name for name, method in METHODS.items() if method.open_vocabulary and name not in judged]
    names = [known_method(name) for name in methods or others]
    for name in names:
        if name in judged:
            raise SettingsError(f"--methods: the facts are about other methods than {name}; leave it out.")
    plans = [Plan(name) for name in names]
    for plan in plans:
        BaseToNovel().check_plan(plan)
    return plans


def _run(
    clip: Clip, datasets: Sequence[Dataset], plans: Sequence[Plan], seeds: Sequence[int], out: Path
) -> list[dict[str, Any]]:
    with RunProgress(len(datasets) * len(plans) * len(seeds)) as progress:
        return run_all(clip, datasets, plans, seeds=seeds, out=out, progress=progress)


if __name__ == "__main__":
    end_with(main)
