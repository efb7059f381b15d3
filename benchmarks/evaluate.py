"""Adapted inference against plain CLIP image encoding.

    python benchmarks/evaluate.py --batch 32
    python benchmarks/evaluate.py --device cuda --batch 250 --bf16

Times image features and scores of a batch (ViT-B/16, random weights, random images on the device) in turn in
one process: open_clip's own image tower; this package's, whose last layer runs for the class token only;
DeAR, fused; DeAR and the frozen CLIP together, which share the trunk; and DeAR+, fitted to the batch as 2
images a class. Ratios are to this package's plain CLIP; operations are those that torch counts. The text
features of the classes are computed once, beforehand.
"""

from typing import Any

import torch
from measure import (
    count_flops,
    dear_on,
    in_turn,
    machine,
    matrix_rate,
    medians,
    network,
    parsed,
    parser,
    role_table,
    show,
)
from torch import Tensor
from torch.nn.functional import normalize

from dear.backbone.precision import mixed
from dear.methods.base import TrainingImages
from dear.methods.registry import build_method


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--batch", type=int, default=32)
    made.add_argument("--classes", type=int, default=50)
    made.add_argument("--bf16", action="store_true", help="in bf16-mixed, as on a GPU")
    options = parsed(made)
    model, clip = network(options)
    names = [f"class {number}" for number in range(options.classes)]
    method = dear_on(clip, names)
    pixels = torch.rand(options.batch, 3, clip.image_size, clip.image_size, device=options.device)
    plus = build_method("dear+", clip, torch.Generator().manual_seed(0), roles=role_table(clip))
    plus.to(options.device).set_classes(names, ["a photo of a {}."])

    def trunk(_number: int = 0) -> Tensor:
        return plus.image_trunk(pixels)

    with torch.no_grad():
        plus.before_training(TrainingImages(torch.arange(options.batch).to(pixels.device) // 2, trunk, trunk))
    precision = "bf16-mixed" if options.bf16 else "32-true"
    with torch.no_grad(), mixed(pixels.device, precision):
        text, text_plus = method.text_features(), plus.text_features()

        def best(features: Tensor) -> Tensor:
            return (clip.scale * features @ method.frozen_text.T).argmax(dim=1)

        def both() -> object:
            held = method.image_trunk(pixels)
            adapted = method.logits(method.image_features(held), text).argmax(dim=1)
            return best(method.frozen_image(held)), adapted

        work = {
            "open_clip": lambda: best(normalize(model.encode_image(clip.normalize_pixels(pixels)), dim=-1)),
            "plain": lambda: best(normalize(clip.encode_image(clip.normalize_pixels(pixels)), dim=-1)),
            "DeAR": lambda: method.logits(method.image_features(method.image_trunk(pixels)), text).argmax(1),
            "DeAR and frozen": both,
            "DeAR+": lambda: plus.logits(plus.image_features(plus.image_trunk(pixels)), text_plus).argmax(1),
        }
        flops: dict[str, Any] = {kind: count_flops(one) for kind, one in work.items()}  # warms them up too
        flops["open_clip"] = None  # torch does not count the attention that it fuses there
        seconds = in_turn(work, options.repeats, options.device)
        rate = matrix_rate(options, torch.bfloat16 if options.bf16 else torch.float32)
    median = medians(seconds)
    rows = [
        {
            "kind": kind,
            "seconds": median[kind],
            "images/s": options.batch / median[kind],
            "time by plain": median[kind] / median["plain"],
            "arithmetic by plain": flops[kind] and flops[kind] / flops["plain"],
            "share of matrix rate": flops[kind] and flops[kind] / median[kind] / rate,
            "all seconds": [round(one, 4) for one in seconds[kind]],
        }
        for kind in work
    ]
    facts = {name: getattr(options, name) for name in ("model", "tiny", "batch", "classes", "repeats")}
    result = {"benchmark": "evaluate", "machine": machine(), "matrix GFLOP/s": rate / 1e9}
    show(result | {"settings": facts | {"precision": precision}, "rows": rows}, options)


if __name__ == "__main__":
    main()
