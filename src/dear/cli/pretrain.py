"""`dear pretrain`: train the tiny CLIP on the Attribute World, with its role table and model card."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from dear.cli.output import progress_console, table
from dear.training.settings import PretrainSettings


@dataclass(frozen=True)
class Pretrained:
    """Where the model is, what the run was, and zero-shot accuracy (fraction) by factor on held-out
    combinations.
    """

    folder: Path
    run: dict[str, Any]
    accuracy: dict[str, dict[str, dict[str, float]]]


def command(
    *,
    out: Path = Path("pretrained"),
    start: Path | None = None,
    settings: PretrainSettings = PretrainSettings(),  # noqa: B008 (frozen, and its fields become options)
    device: Literal["cpu", "cuda"] = "cpu",
    every: int = 250,
    start_over: bool = False,
) -> Pretrained:
    """Train the tiny CLIP on the Attribute World.

    Writes model.safetensors, vocabulary.json, roles.json and README.md (the model card) into the folder. An
    interrupted run resumes from its checkpoint when the same command is repeated.

    Args:
        out: Folder of the model and of the checkpoint.
        start: Folder of an earlier run, whose weights this one starts from; random weights if not given.
        settings: Settings of the run.
        device: Where to train.
        every: Steps between checkpoints.
        start_over: Set a damaged checkpoint aside and start over; without it that is an error.
    """
    from dear.backbone import tiny
    from dear.data.world.tasks import downstream_names
    from dear.evaluation.factors import accuracy_by_factor
    from dear.evaluation.gathering import gathering
    from dear.evaluation.model_card import model_card
    from dear.report.html import write_whole
    from dear.roles.ground_truth import roles_from_factors
    from dear.training.pretrain import Pretraining

    console = progress_console()

    def tell(run: Pretraining) -> None:
        left = run.seconds / run.step * (settings.steps - run.step)
        console.print(
            f"step {run.step}/{settings.steps}  loss {run.loss:.4f}  {run.seconds:.0f} s, {left:.0f} s to go"
        )

    run = Pretraining(settings, out, device, start=start).run(
        every=every, start_over=start_over, progress=tell
    )
    clip = tiny.load(out)
    accuracy = {c: accuracy_by_factor(clip, combinations=c) for c in ("held-out", "pretraining")}
    roles = roles_from_factors(clip)
    roles.save(out / "roles.json")
    gathered = gathering(
        clip, downstream_names(), progress=lambda task: console.print(f"ablating heads on {task}")
    )
    card = model_card(clip, run, accuracy, device, gathered=gathered, roles=roles)
    write_whole(out / "README.md", card)
    return Pretrained(out, run, accuracy)


def render(result: Pretrained, console: Console) -> None:
    """Show the accuracy by factor and where the model is."""
    rows = [
        (combinations, style, *(100 * value for value in by_factor.values()))
        for combinations, by_style in result.accuracy.items()
        for style, by_factor in by_style.items()
    ]
    factors = list(next(iter(result.accuracy["held-out"].values())))
    console.print(table("Zero-shot accuracy, percent", ["combinations", "style", *factors], rows))
    console.print(f"The model is in {result.folder}: use it with --model tiny --pretrained {result.folder}")
