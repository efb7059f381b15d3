"""Train the tiny CLIP on the Attribute World: `python -m tools.pretrain --out FOLDER`, from a checkout.

Writes model.safetensors, vocabulary.json, roles.json and README.md (the model card) into the folder. An
interrupted run resumes from its checkpoint when the same command is repeated.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from dear.backbone import tiny
from dear.cli.output import PrintableConsole, progress_console, table
from dear.data.world.tasks import downstream_names
from dear.report.html import write_html
from tools import add_fields, end_with, fields_of
from tools.factors import accuracy_by_factor
from tools.gathering import gathering
from tools.ground_truth import roles_from_factors
from tools.pretrain_settings import PretrainSettings
from tools.pretraining import Pretraining
from tools.tiny_card import model_card


def main(words: Sequence[str] | None = None) -> None:
    """Train, measure the model and write its card."""
    parser = argparse.ArgumentParser(
        description=f"{__doc__}\n{PretrainSettings.__doc__}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path, default=Path("pretrained"), help="folder of the model")
    parser.add_argument("--start", type=Path, help="folder of a run whose weights this one starts from")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--every", type=int, default=250, help="steps between checkpoints")
    parser.add_argument("--start-over", action="store_true", help="set a damaged checkpoint aside")
    add_fields(parser, PretrainSettings)
    options = parser.parse_args(words)
    settings: PretrainSettings = fields_of(options, PretrainSettings)
    console = progress_console()

    def tell(run: Pretraining) -> None:
        left = run.seconds / run.step * (settings.steps - run.step)
        console.print(
            f"step {run.step}/{settings.steps}  loss {run.loss:.4f}  {run.seconds:.0f} s, {left:.0f} s to go"
        )

    run = Pretraining(settings, options.out, options.device, start=options.start).run(
        every=options.every, start_over=options.start_over, progress=tell
    )
    clip = tiny.load(options.out)
    accuracy = {c: accuracy_by_factor(clip, combinations=c) for c in ("held-out", "pretraining")}
    roles = roles_from_factors(clip)
    roles.save(options.out / "roles.json")
    gathered = gathering(
        clip, downstream_names(), progress=lambda task: console.print(f"ablating heads on {task}")
    )
    card = model_card(clip, run, accuracy, options.device, gathered=gathered, roles=roles)
    write_html(options.out / "README.md", card)
    rows = [
        (combinations, style, *(100 * value for value in by_factor.values()))
        for combinations, by_style in accuracy.items()
        for style, by_factor in by_style.items()
    ]
    factors = list(next(iter(accuracy["held-out"].values())))
    stdout = PrintableConsole(highlight=False)
    stdout.print(table("Zero-shot accuracy, percent", ["combinations", "style", *factors], rows))
    stdout.print(f"The model is in {options.out}: use it with --model tiny --pretrained {options.out}")


if __name__ == "__main__":
    end_with(main)
