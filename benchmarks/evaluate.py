"""Adapted inference against plain CLIP image encoding.

    python benchmarks/evaluate.py --batch 32
    python benchmarks/evaluate.py --device cuda --batch 250 --bf16

Times image features and scores of a batch (ViT-B/16, random weights, random images on the device) in turn in
one process: open_clip's own image tower; this package's, whose last layer runs for the class token only;
DeAR, fused; DeAR and the frozen CLIP together, which share the trunk; and DeAR+, fitted to the batch as 2
images a class. The ratio is to this package's plain CLIP. Text features of the classes are computed once,
beforehand.
"""

import torch
from arithmetic import Step, Tower, span, trunk
from measure import ATTRIBUTES, dear_on, in_turn, machine, matrix_rate, medians, network, parsed, parser, show
from methods import built
from torch.nn.functional import normalize

from dear.backbone.precision import mixed


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
    labels = (torch.arange(options.batch) // 2).to(options.device)
    plus = built("dear+", clip, names, pixels, labels)
    frozen_text, like = method.frozen_text, clip.image.projection
    precision = "bf16-mixed" if options.bf16 else "32-true"
    with torch.inference_mode(), mixed(like.device, precision):
        text, text_plus = method.text_features(), plus.text_features()

        def plain() -> object:
            features = normalize(clip.encode_image(clip.normalize_pixels(pixels)), dim=-1)
            return (clip.scale * features @ frozen_text.T).argmax(dim=1)

        def open_clip() -> object:
            features = normalize(model.encode_image(clip.normalize_pixels(pixels)), dim=-1)
            return (clip.scale * features @ frozen_text.T).argmax(dim=1)

        def adapted() -> object:
            return method.logits(method.image_features(method.image_trunk(pixels)), text).argmax(dim=1)

        def both() -> object:
            held = method.image_trunk(pixels)
            frozen = (clip.scale * method.frozen_image(held) @ frozen_text.T).argmax(dim=1)
            return frozen, method.logits(method.image_features(held), text).argmax(dim=1)

        def added() -> object:
            return plus.logits(plus.image_features(plus.image_trunk(pixels)), text_plus).argmax(dim=1)

        work = {
            "open_clip": open_clip,
            "plain": plain,
            "DeAR": adapted,
            "DeAR and frozen": both,
            "DeAR+": added,
        }
        for one in work.values():
            one()
        seconds = in_turn(work, options.repeats, options.device)
        rate = matrix_rate(options, torch.bfloat16 if options.bf16 else torch.float32)
    median, flops = medians(seconds), _flops(clip, method, options.batch, options.classes)
    rows = [
        {
            "kind": kind,
            "seconds": median[kind],
            "images/s": options.batch / median[kind],
            "time by plain": median[kind] / median["plain"],
            "arithmetic by plain": flops[kind] / flops["plain"],
            "share of matrix rate": flops[kind] / median[kind] / rate,
            "all seconds": [round(one, 4) for one in seconds[kind]],
        }
        for kind in work
    ]
    facts = {name: getattr(options, name) for name in ("model", "tiny", "batch", "classes", "repeats")}
    show(
        {
            "benchmark": "evaluate",
            "machine": machine(),
            "matrix GFLOP/s": rate / 1e9,
            "settings": facts | {"precision": precision},
            "rows": rows,
        },
        options,
    )


def _flops(clip: object, method: object, batch: int, classes: int) -> dict[str, int]:
    """Minimal operations of each kind; for open_clip those that it runs, with the whole last layer."""
    tower, first = clip.image, method.image_from  # type: ignore[attr-defined]
    image = Tower(tower.width, tower.depth, tower.depth - first + 1, tower.embed_dim)
    tokens, added = (tower.image_size // tower.patch_size) ** 2 + 1, len(ATTRIBUTES)
    step = Step(image, image, batch, tokens, 3 * tower.patch_size**2, [1], added)
    project = 2 * batch * tower.width * tower.embed_dim
    scores = 2 * batch * classes * tower.embed_dim
    before, frozen = trunk(step), sum(span(image, batch, tokens)) + project + scores
    own = sum(span(image, batch, tokens, added=added, read=1 + added)) + project * (1 + added) + scores
    own += 2 * batch * (1 + added) * tower.embed_dim
    readouts = 2 * batch * tower.width * image.span * (tower.width + tower.heads * added)
    readouts += 2 * batch * tower.width * tower.embed_dim * added
    evidence = 2 * batch * tower.embed_dim * ((tower.embed_dim + classes) * added + tower.embed_dim)
    unread = batch * (tokens - 1)
    whole = 20 * unread * tower.width**2 + 4 * unread * tokens * tower.width
    return {
        "open_clip": before + frozen + whole,
        "plain": before + frozen,
        "DeAR": before + own,
        "DeAR and frozen": before + own + frozen,
        "DeAR+": before + frozen + readouts + evidence,
    }


if __name__ == "__main__":
    main()
