"""Zero-shot accuracy of a CLIP on each factor of the Attribute World, with plain prompts."""

import torch
from torch.nn.functional import normalize

from dear.backbone.clip import Clip
from dear.data.world.factors import FACTOR_NAMES, STYLES
from dear.data.world.render import render
from dear.data.world.scene import Combinations, draw_scenes
from tools.captions import plain_prompts

PHOTO = STYLES.values.index("photo")


@torch.no_grad()
def accuracy_by_factor(
    clip: Clip,
    *,
    combinations: Combinations = "held-out",
    images: int = 2000,
    seed: int = 1_000_003,
    batch: int = 250,
) -> dict[str, dict[str, float]]:
    """Zero-shot accuracy (fraction) for each factor, over all styles ("all") and over photos alone ("photo").

    ``combinations`` "held-out" draws images that contain at least one pair of values never seen together in
    pretraining.
    """
    text = {f: normalize(clip.encode_text(plain_prompts(f)), dim=-1) for f in FACTOR_NAMES}
    hits, photos = [], []
    for start in range(0, images, batch):
        scene = draw_scenes(seed, torch.arange(start, min(start + batch, images)), combinations=combinations)
        pixels = render(scene, clip.image_size).to(clip.image.projection) / 255
        image = normalize(clip.encode_image(clip.normalize_pixels(pixels)), dim=-1)
        guesses = torch.stack([(image @ text[f].T).argmax(dim=1).cpu() for f in FACTOR_NAMES], dim=1)
        hits.append(guesses == scene.factors)
        photos.append(scene.style == PHOTO)
    hit, photo = torch.cat(hits).double(), torch.cat(photos)
    return {
        "all": dict(zip(FACTOR_NAMES, hit.mean(dim=0).tolist(), strict=True)),
        "photo": dict(zip(FACTOR_NAMES, hit[photo].mean(dim=0).tolist(), strict=True)),
    }
