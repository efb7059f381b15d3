"""Predictions for image files against open_clip's own loop over the same files, in images a second.

    python benchmarks/predict.py --images 256 --out benchmarks/results/predict.json
    python benchmarks/predict.py --model ViT-S-32 --images 10000 --repeats 1

JPEGs of 640 x 480 pixels of smooth noise are written first. Both sides classify them among 50 names with the
same random weights, in turn in one process: open_clip as its README shows it (PIL, its transform,
`encode_image`, a softmax; batches of 32), plain and with a torch DataLoader of two workers; and
`Predictor.predict` with a zero-shot bundle, in float32 and in the precision that it takes by default, which
is bfloat16 where the processor is fast in it.
"""

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import open_clip
import torch
from measure import HALF, both_clocks, machine, medians, network, parsed, parser, show
from PIL import Image
from torch.utils.data import DataLoader

from dear.adapters.bundle import Bundle
from dear.adapters.predictor import BATCH, Predictor
from dear.backbone.choice import Precision
from dear.backbone.clip import Clip
from dear.backbone.precision import precision_for
from dear.methods.registry import METHODS

SIZE = 640, 480


def write_images(folder: Path, count: int) -> list[Path]:
    """JPEGs of smooth noise, as large as a photograph's when stored."""
    generator = np.random.default_rng(0)
    paths = [folder / f"{number}.jpg" for number in range(count)]
    for path in paths:
        coarse = generator.integers(0, 256, (24, 32, 3), dtype=np.uint8)
        Image.fromarray(coarse).resize(SIZE, Image.Resampling.BICUBIC).save(path, quality=90)
    return paths


class Files(torch.utils.data.Dataset[torch.Tensor]):
    """Images as open_clip's transform makes them."""

    def __init__(self, paths: Sequence[Path], transform: Callable[[Any], torch.Tensor]) -> None:
        self.paths, self.transform = paths, transform

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.transform(Image.open(self.paths[index]))


def official(
    model: Any, clip: Clip, paths: Sequence[Path], names: Sequence[str], workers: int
) -> torch.Tensor:
    """The best class of each image, by open_clip's own loop."""
    transform = open_clip.image_transform(clip.image_size, is_train=False, mean=HALF, std=HALF)
    with torch.inference_mode():
        text = model.encode_text(clip.tokenizer([f"a photo of a {name}." for name in names]), normalize=True)
        batches = DataLoader(Files(paths, transform), BATCH, num_workers=workers)
        scores = [model.encode_image(pixels, normalize=True) @ text.T for pixels in batches]
    return torch.cat([(100 * part).softmax(dim=1).argmax(dim=1) for part in scores])


def bundle_of(clip: Clip, names: Sequence[str]) -> Bundle:
    """Zero-shot CLIP as a bundle."""
    return Bundle(
        method="zero-shot",
        settings=METHODS["zero-shot"].settings(),
        model=clip.identity.model,
        pretrained=clip.identity.pretrained,
        weights=clip.identity,
        roles=None,
        classes=tuple(names),
        templates=("a photo of a {}.",),
        tensors={},
    )


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--images", type=int, default=256)
    arguments.add_argument("--classes", type=int, default=50)
    options = parsed(arguments)
    model, clip = network(options)
    names = [f"class {number}" for number in range(options.classes)]
    with tempfile.TemporaryDirectory() as folder:
        paths = write_images(Path(folder), options.images)

        def ours(precision: Precision) -> Callable[[], list[str]]:
            predictor = Predictor(bundle_of(clip, names), options.device, clip=clip, precision=precision)
            return lambda: [prediction.best.name for prediction in predictor.predict(paths, 1)]

        work: dict[str, Callable[[], Any]] = {
            "open_clip": lambda: [names[best] for best in official(model, clip, paths, names, 0)],
            "open_clip, 2 workers": lambda: [names[best] for best in official(model, clip, paths, names, 2)],
            "dear, 32-true": ours("32-true"),
        }
        default = precision_for(clip, "auto")
        if default != "32-true":
            work[f"dear, {default}"] = ours("auto")
        best = {kind: predict() for kind, predict in work.items()}  # which also warms them up
        seconds, busy = both_clocks(work, options.repeats, options.device)
    median, cpu = medians(seconds), medians(busy)
    rows = [
        {
            "kind": kind,
            "images/s": options.images / median[kind],
            "times open_clip": median["open_clip"] / median[kind],
            "CPU s an image": cpu[kind] / options.images if "workers" not in kind else None,
            "same class": sum(map(str.__eq__, best[kind], best["open_clip"])) / options.images,
            "all seconds": [round(second, 3) for second in seconds[kind]],
        }
        for kind in work
    ]
    facts = {name: getattr(options, name) for name in ("model", "tiny", "images", "classes", "repeats")}
    show({"benchmark": "predict", "machine": machine(), "settings": facts, "rows": rows}, options)


if __name__ == "__main__":
    main()
