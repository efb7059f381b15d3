"""Train the tiny CLIP on the Attribute World: `python -m tools.pretrain --out FOLDER`, from a checkout.

Writes model.safetensors, vocabulary.json, roles.json (by the factors) and pretraining.json (the run's facts)
into the folder, and prints the zero-shot accuracy by factor. An interrupted run resumes from its checkpoint
when the same command is repeated.
"""

from pathlib import Path
from typing import Annotated

import torch
from cyclopts import App, Parameter
from torch.nn.functional import normalize

from dear.backbone.clip import Clip
from dear.backbone.loading import tiny
from dear.world.factors import FACTOR_NAMES, STYLES
from dear.world.render import render
from dear.world.scene import Combinations, draw_scenes
from tools.captions import plain_prompts
from tools.ground_truth import roles_from_factors
from tools.pretraining import Pretraining, PretrainSettings

IMAGES, SEED, BATCH = 2000, 1_000_003, 250
"""Images for the accuracy by factor, the seed that draws them, and how many are encoded at a time."""
DRAWN: tuple[Combinations, ...] = ("held-out", "pretraining")

app = App(help=__doc__, version_flags=[])


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


@app.default
def main(
    settings: Annotated[PretrainSettings, Parameter(name="*")] = PretrainSettings(),  # noqa: B008
    *,
    out: Path = Path("pretrained"),
    start: Path | None = None,
    device: str = "cpu",
) -> None:
    """Train and measure the model in ``out``, from random weights or those of a run in ``start``."""

    def tell(run: Pretraining) -> None:
        left = run.seconds / run.step * (settings.steps - run.step)
        print(
            f"step {run.step}/{settings.steps}  loss {run.loss:.4f}  {run.seconds:.0f} s, {left:.0f} s to go"
        )

    Pretraining(settings, out, device, start=start).run(progress=tell)
    clip = tiny.load(out)
    roles_from_factors(clip).save(out / "roles.json")
    print("Zero-shot accuracy, percent:", *FACTOR_NAMES)
    for combinations in DRAWN:
        for style, accuracy in accuracy_by_factor(clip, combinations).items():
            print(f"{combinations}, {style}:", *(f"{percent:.1f}" for percent in accuracy))
    print(f"Use the model with --model tiny --pretrained {out}")


if __name__ == "__main__":
    app()
