"""`dear demo`, base-to-novel with the embedded tiny CLIP and its report."""

import time
from pathlib import Path
from typing import Any

from dear.cli.output import PrintableConsole

RETRIEVAL_TASK = "travel-posters"
SHOTS = 16
NEXT = """\
Next:
  your own images   dear fit FOLDER --out my-classifier          (layout: docs/your-data.md; with a real
                    CLIP, ViT-B-16, from the hub: the tiny one knows drawings only)
  all methods       dear run base-to-novel --data FOLDER --methods all
  the ablations     dear run ablation --seeds 1,2,3"""

NOTES = (
    "The backbone is the embedded tiny CLIP, pretrained on the procedural Attribute World; "
    "nothing here is measured on photographs.",
    "The last epoch is tested; no setting, epoch or checkpoint is selected on test images.",
)


def command_demo(
    *,
    out: Path | None = None,
    tasks: list[str] | None = None,
    seed: int = 1,
    roles: Path | None = None,
) -> dict[str, Any]:
    """Adapt the tiny CLIP to the Attribute World with DeAR and DeAR+, and report on them beside zero-shot.

    This takes a few minutes on a CPU, offline. The same seed gives the same table.

    Args:
        out: Folder of the report and the run records. By default demo-out in the current folder.
        tasks: Tasks of the Attribute World. By default all.
        seed: Seed of few-shot images, their order and views, and initial parameters.
        roles: Role table: a file, discovered (the default) or ground-truth.
    """
    out = out or Path("demo-out")
    from dear.cli.progress import RunBars  # loads torch: what can be refused without it is
    from dear.evaluation.experiment import Experiment, Machines
    from dear.evaluation.launch import launch
    from dear.evaluation.protocols.base_to_novel import BaseToNovel
    from dear.evaluation.protocols.retrieval import Retrieval
    from dear.evaluation.resolve import MethodSetup
    from dear.methods.registry import DEFAULT_METHOD, FIT_METHOD, USUAL
    from dear.report.records import read_folder
    from dear.report.render import write_html
    from dear.report.report_page import report_page
    from dear.roles.table import named_table
    from dear.world.tasks import downstream_names

    options: dict[str, Any] = {"model": "tiny", "roles": roles, "seeds": (seed,), "shots": (SHOTS,)}
    folder, names = out / "records", tuple(tasks or downstream_names())
    methods = tuple(map(MethodSetup, (*USUAL, FIT_METHOD)))
    base = Experiment(protocol=BaseToNovel(), methods=methods, data=names, out=folder, **options)
    retrieval = Experiment(
        protocol=Retrieval(),
        methods=(MethodSetup(DEFAULT_METHOD),),
        data=(RETRIEVAL_TASK,),
        out=out / "retrieval",
        **options,
    )
    start = time.perf_counter()
    with RunBars(len(base.runs()) + 1) as progress:
        records, retrieved = launch([base, retrieval], Machines(device="cpu"), progress)
    seconds, table = time.perf_counter() - start, named_table(str(roles or "discovered"))
    notes = (*NOTES, f"Head roles: {table.source}.")
    with_predictions = {record["key"]: record for record in read_folder(out)}
    page = report_page(
        title="DeAR on the Attribute World",
        records=[with_predictions[record["key"]] for record in [*records, *retrieved]],
        notes=notes,
    )
    report = write_html(out / "report.html", page.text)
    return {"table": page.tables[0], "seconds": seconds, "report": report, "records": folder}


def render_demo(result: dict[str, Any], console: PrintableConsole) -> None:
    """Show the table and what to do next."""
    result["table"].render(console)
    console.say(f"{result['seconds']:.0f} s", "", f"Report: {result['report']}", "", *NEXT.splitlines())
