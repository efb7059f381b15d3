"""Train the tiny CLIP on the Attribute World: `python -m tools.pretrain --out FOLDER`, from a checkout.

Writes model.safetensors, vocabulary.json, roles.json (by the factors) and pretraining.json (the run's facts)
into the folder, and prints the zero-shot accuracy by factor. An interrupted run resumes from its checkpoint
when the same command is repeated.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch
from torch.nn.functional import normalize

from dear.backbone import tiny
from dear.backbone.clip import Clip
from dear.cli.output import PrintableConsole, progress_console, table
from dear.data.world.factors import FACTOR_NAMES, STYLES
from dear.data.world.render import render
from dear.data.world.scene import Combinations, draw_scenes
from tools import add_fields, end_with, fields_of
from tools.captions import plain_prompts
from tools.ground_truth import roles_from_factors
from tools.pretrain_settings import PretrainSettings
from tools.pretraining import Pretraining

IMAGES, SEED, BATCH = 2000, 1_000_003, 250
"""Images for the accuracy by factor, the seed that draws them, and how many are encoded at a time."""


@torch.no_grad()
def accuracy_by_factor(clip: Clip, combinations: Combinations) -> dict[str, list[float]]:
    """Zero-shot accuracy (percent) from plain prompts of each factor, over all styles and over photos alone.
    Images of "held-out" combinations contain at least one pair of values never seen together in pretraining.
    """
    text = [normalize(clip.encode_text(plain_prompts(name)), dim=-1) for name in FACTOR_NAMES]
    hits, photos = [], []
    for start in range(0, IMAGES, BATCH):
        scene = draw_scenes(SEED, torch.arange(start, start + BATCH), combinations=combinations)
        pixels = render(scene, clip.image_size).to(clip.image.projection) / 255
        image = normalize(clip.encode_image(clip.normalize_pixels(pixels)), dim=-1)
        guesses = torch.stack([(image @ prompts.T).argmax(dim=1).cpu() for prompts in text], dim=1)
        hits.append(guesses == scene.factors)
        photos.append(scene.style == STYLES.values.index("photo"))
    hit, photo = 100 * torch.cat(hits).double(), torch.cat(photos)
    return {"all": hit.mean(dim=0).tolist(), "photo": hit[photo].mean(dim=0).tolist()}


def main(words: Sequence[str] | None = None) -> None:
    """Train and measure the model."""
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

    Pretraining(settings, options.out, options.device, start=options.start).run(
        every=options.every, start_over=options.start_over, progress=tell
    )
    clip = tiny.load(options.out)
    roles_from_factors(clip).save(options.out / "roles.json")
    drawn: tuple[Combinations, ...] = ("held-out", "pretraining")
    rows = [
        (combinations, style, *accuracy)
        for combinations in drawn
        for style, accuracy in accuracy_by_factor(clip, combinations).items()
    ]
    stdout = PrintableConsole(highlight=False)
    stdout.print(table("Zero-shot accuracy, percent", ["combinations", "style", *FACTOR_NAMES], rows))
    stdout.print(f"The model is in {options.out}: use it with --model tiny --pretrained {options.out}")


if __name__ == "__main__":
    end_with(main)
