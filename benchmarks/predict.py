"""Adapted inference against plain CLIP, and predictions for files against open_clip's own loop.

    python benchmarks/predict.py --batch 32
    python benchmarks/predict.py --device cuda --batch 250 --bf16
    python benchmarks/predict.py --files 256
    python benchmarks/predict.py --names --classes 1000

Without files, the features and scores of a batch are timed (ViT-B/16, random weights, random images on the
device) in turn in one process: open_clip's own image tower; this package's, whose last layer runs for the
class token only; DeAR, fused; DeAR and the frozen CLIP together, which share the trunk; and DeAR+, fitted to
the batch as 2 images a class. Ratios are to this package's plain CLIP; operations are those that torch
counts. The text features of the classes are computed once, beforehand.

With files, JPEGs of 640 x 480 pixels of smooth noise are written first and classified: by open_clip as its
README shows it (PIL, its transform, `encode_image`, a softmax), plain and with a torch DataLoader of two
workers; and by `Predictor.predict` with a zero-shot bundle, in float32 and in the precision that it takes by
default.

With --names, the names of the classes are encoded at once, as a `Predictor` does when it is made: the time,
and the memory that it adds to that of the model.
"""

import argparse
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import measure
import numpy as np
import open_clip
import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import normalize
from torch.utils.data import DataLoader

from dear.adapters.bundle import Bundle
from dear.adapters.encoder import BATCH
from dear.adapters.predictor import Predictor
from dear.backbone.clip import Clip
from dear.backbone.device import mixed, precision_for
from dear.backbone.names import Precision
from dear.methods.base import TrainingImages
from dear.methods.registry import METHODS, build_method

SETTINGS = ["model", "classes", "repeats"]


def main() -> None:
    parser = measure.make_parser(__doc__)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--classes", type=int, default=50)
    parser.add_argument("--bf16", action="store_true", help="in bf16-mixed, as on a GPU")
    parser.add_argument(
        "--files", type=int, default=0, help="number of image files; 0: a batch on the device"
    )
    parser.add_argument("--names", action="store_true", help="encode class names, and no images")
    options = measure.parse(parser)
    model, clip = measure.build_network(options)
    names = [f"class {number}" for number in range(options.classes)]
    if options.names:
        time_names(options, clip, measure.class_names(options.classes))
    else:
        (time_files if options.files else time_batch)(options, model, clip, names)


def time_names(options: argparse.Namespace, clip: Clip, names: list[str]) -> None:
    """Time and peak memory of encoding all names of classes."""

    def encode() -> None:
        Predictor(bundle_of(clip, names), options.device, clip=clip, precision="32-true")

    memory = measure.step_memory(encode, options.device)  # which warms it up
    timing = measure.time_in_turn({"names": encode}, options.repeats, options.device)["names"]
    row = {
        "kind": "dear, 32-true",
        "names": len(names),
        "seconds": timing.seconds,
        "CPU s": timing.cpu_seconds,
    }
    measure.show(options, [{**row, **memory, "all seconds": timing.all_seconds}], SETTINGS)


def time_batch(options: argparse.Namespace, model: Any, clip: Clip, names: list[str]) -> None:
    """Time a batch that is on the device."""
    method = measure.dear_on(clip, names)
    pixels = torch.rand(options.batch, 3, clip.image_size, clip.image_size, device=options.device)
    plus = build_method("dear+", clip, torch.Generator().manual_seed(0), roles=measure.role_table(clip))
    plus.to(options.device).set_classes(names, [measure.TEMPLATE])

    def view(_number: int | None) -> Tensor:
        return plus.read_out(plus.image_trunk(pixels))

    with torch.no_grad():
        plus.before_training(TrainingImages(torch.arange(options.batch).to(pixels.device) // 2, view))
    with torch.no_grad(), mixed(pixels.device, "bf16-mixed" if options.bf16 else "32-true"):
        text, text_plus = method.text_features(), plus.text_features()

        def best(features: Tensor) -> Tensor:
            return (clip.scale * features @ method.frozen_text.T).argmax(dim=1)

        def both() -> object:
            shared = method.image_trunk(pixels)
            adapted = method.logits(method.image_features(shared), text).argmax(dim=1)
            return best(method.frozen_image(shared)), adapted

        work = {
            "open_clip": lambda: best(normalize(model.encode_image(clip.normalize_pixels(pixels)), dim=-1)),
            "plain": lambda: best(normalize(clip.encode_image(clip.normalize_pixels(pixels)), dim=-1)),
            "DeAR": lambda: method.logits(method.image_features(method.image_trunk(pixels)), text).argmax(1),
            "DeAR and frozen": both,
            "DeAR+": lambda: plus.logits(plus.image_features(view(None)), text_plus).argmax(1),
        }
        flops: dict[str, Any] = {kind: measure.count_flops(run) for kind, run in work.items()}  # warms up too
        flops["open_clip"] = None  # torch does not count the attention that it fuses there
        timings = measure.time_in_turn(work, options.repeats, options.device)
        rate = measure.matrix_rate(options.device, torch.bfloat16 if options.bf16 else torch.float32)
    rows = [
        {
            "kind": kind,
            "seconds": timing.seconds,
            "images/s": options.batch / timing.seconds,
            "time by plain": timing.seconds / timings["plain"].seconds,
            "arithmetic by plain": flops[kind] and flops[kind] / flops["plain"],
            "share of matrix rate": flops[kind] and flops[kind] / timing.seconds / rate,
            "all seconds": timing.all_seconds,
        }
        for kind, timing in timings.items()
    ]
    measure.show(options, rows, [*SETTINGS, "batch", "bf16"], **{"matrix GFLOP/s": rate / 1e9})


def time_files(options: argparse.Namespace, model: Any, clip: Clip, names: list[str]) -> None:
    """Time both ways from image files to class names."""
    with tempfile.TemporaryDirectory() as folder:
        paths = write_images(Path(folder), options.files)

        def ours(precision: Precision) -> Callable[[], list[str]]:
            predictor = Predictor(bundle_of(clip, names), options.device, clip=clip, precision=precision)
            return lambda: [prediction.best.name for prediction in predictor.predict(paths, 1)]

        work: dict[str, Callable[[], Any]] = {
            "open_clip": lambda: official(model, clip, paths, names, 0),
            "open_clip, 2 workers": lambda: official(model, clip, paths, names, 2),
            "dear, 32-true": ours("32-true"),
        }
        default = precision_for(clip, "auto")
        if default != "32-true":
            work[f"dear, {default}"] = ours("auto")
        best = {kind: predict() for kind, predict in work.items()}  # which also warms them up
        timings = measure.time_in_turn(work, options.repeats, options.device)
    rows = [
        {
            "kind": kind,
            "images/s": options.files / timing.seconds,
            "times open_clip": timings["open_clip"].seconds / timing.seconds,
            "CPU s an image": timing.cpu_seconds / options.files if "workers" not in kind else None,
            "same class": sum(map(str.__eq__, best[kind], best["open_clip"])) / options.files,
            "all seconds": timing.all_seconds,
        }
        for kind, timing in timings.items()
    ]
    measure.show(options, rows, [*SETTINGS, "files"])


def write_images(folder: Path, count: int) -> list[Path]:
    """JPEGs of smooth noise, as large as a photograph's when stored."""
    generator = np.random.default_rng(0)
    paths = [folder / f"{number}.jpg" for number in range(count)]
    for path in paths:
        coarse = generator.integers(0, 256, (24, 32, 3), dtype=np.uint8)
        Image.fromarray(coarse).resize((640, 480), Image.Resampling.BICUBIC).save(path, quality=90)
    return paths


@torch.inference_mode()
def official(model: Any, clip: Clip, paths: Sequence[Path], names: Sequence[str], workers: int) -> list[str]:
    """The best class of each image, by open_clip's own loop."""
    transform = open_clip.image_transform(clip.image_size, False, measure.HALF, measure.HALF)

    def load(part: Sequence[Path]) -> Tensor:
        return torch.stack([transform(Image.open(path)) for path in part])

    prompts = clip.tokenizer([measure.TEMPLATE.format(name) for name in names])
    text = model.encode_text(prompts, normalize=True)
    batches = DataLoader(paths, BATCH, collate_fn=load, num_workers=workers)
    scores = [100 * model.encode_image(pixels, normalize=True) @ text.T for pixels in batches]
    return [names[best] for part in scores for best in part.softmax(dim=1).argmax(dim=1)]


def bundle_of(clip: Clip, names: Sequence[str]) -> Bundle:
    """Zero-shot CLIP as a bundle."""
    return Bundle(
        method="zero-shot", settings=METHODS["zero-shot"].settings(), model=clip.identity.model,
        pretrained=clip.identity.pretrained, weights=clip.identity, roles=None, classes=tuple(names),
        templates=(measure.TEMPLATE,), tensors={},
    )  # fmt: skip


if __name__ == "__main__":
    main()
