"""A training step of every method, at its published batch size and some numbers of classes.

    python benchmarks/methods.py --device cuda --classes 50 100 500 1000
    python benchmarks/methods.py --tiny --classes 5

A step is forward and backward from views (random images on the device, random weights), without the
optimizer's.
Precision is that of training: bfloat16 on a GPU and on processors that are fast in it. Memory is the GPU's
most allocated memory during a step; of a CPU the resident peak of the process so far. A method that does not
fit says so and the next is measured.
"""

import gc
from collections.abc import Callable
from typing import Any

import torch
from measure import in_turn, machine, medians, network, parsed, parser, role_table, show
from torch import Tensor
from train_step import NAMES

from dear.backbone.clip import Clip
from dear.backbone.precision import mixed, precision_for
from dear.evaluation.environment import peak, start_counting
from dear.methods.base import Method, TrainingImages
from dear.methods.registry import METHODS, build_method


def built(name: str, clip: Clip, classnames: list[str], pixels: Tensor, labels: Tensor) -> Method:
    """A method with its classes set, prepared for its first step."""
    seed = torch.Generator().manual_seed(0)
    method = build_method(name, clip, seed, roles=role_table(clip)).to(pixels.device)
    if (teacher := METHODS[name].teacher) is not None:
        method.set_teacher(built(teacher, clip, classnames, pixels, labels))
    method.set_classes(classnames, ["a photo of a {}."])

    def trunk(_number: int = 0) -> Tensor:
        return method.image_trunk(pixels)

    with torch.no_grad():
        method.before_training(TrainingImages(labels, trunk, trunk))
    return method


def step_of(method: Method, pixels: Tensor, labels: Tensor) -> Callable[[], None]:
    """The work of a step."""
    precision = precision_for(method.clip)
    views = pixels.repeat(method.views_per_image, 1, 1, 1)
    wanted = labels.repeat(method.views_per_image)

    def work() -> None:
        method.zero_grad(set_to_none=True)
        with mixed(pixels.device, precision):
            with torch.no_grad():
                trunk = method.image_trunk(views)
                given = () if method.target == "trunk" else (method.target_features(views),)
            parts = method.loss(trunk, wanted, *given)
        method.backward(parts, lambda loss: loss.backward(retain_graph=method.several_backwards))

    return work


def row_of(name: str, clip: Clip, classes: int, options: Any) -> dict[str, Any] | None:
    """Seconds and memory of a method's step; None for a method that takes none."""
    batch = int(METHODS[name].settings.training.get("batch", 16))
    shape = (batch, 3, clip.image_size, clip.image_size)
    pixels = torch.rand(shape, generator=torch.Generator().manual_seed(0)).to(options.device)
    labels = (torch.arange(batch) % classes).to(options.device)
    names = NAMES.read_text(encoding="utf-8").splitlines()[:classes]
    row: dict[str, Any] = {"classes": classes, "method": name, "batch": batch}
    gc.collect()
    start_counting()
    try:
        method = built(name, clip, names, pixels, labels)
        if not method.takes_steps:
            return None
        method.train()
        work = step_of(method, pixels, labels)
        work()
        median = medians(in_turn({name: work}, options.repeats, options.device))[name]
    except torch.cuda.OutOfMemoryError:
        return row | {"ms": "out of memory", "images/s": None, "MiB": None}
    found = peak()
    memory = found["gpu" if options.device.startswith("cuda") else "resident"]
    return row | {"ms": 1000 * median, "images/s": batch / median, "MiB": memory}


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--classes", type=int, nargs="+", default=[50])
    made.add_argument("--methods", nargs="+", help="methods; all that take steps if not given")
    options = parsed(made)
    _, clip = network(options)
    names = options.methods or [name for name, one in METHODS.items() if one.trains]
    found = [row_of(name, clip, classes, options) for classes in options.classes for name in names]
    rows = [row for row in found if row is not None]
    facts = {name: getattr(options, name) for name in ("model", "tiny", "device", "repeats")}
    settings = facts | {"precision": precision_for(clip)}
    show({"benchmark": "methods", "machine": machine(), "settings": settings, "rows": rows}, options)


if __name__ == "__main__":
    main()
