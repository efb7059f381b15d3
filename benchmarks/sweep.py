"""Time of the paper's Table 2: DeAR trained and tested on all 11 data sets, base-to-novel, one seed.

    python benchmarks/sweep.py --device cuda
    python benchmarks/sweep.py --tiny

Class names, templates and numbers of classes and test images are the data sets' own; 16 shots of the base
classes, 10 epochs at batch 16, tests at batch 250, with the package's own loop. Images are random and decoded
beforehand, in main memory; weights are random. On a CPU only --tiny is timed: a tiny network,
two epochs, two shots and a hundredth of the test images.
"""

import time

import torch
from jaxtyping import Int, UInt8
from measure import dear_on, machine, network, parsed, parser, show
from torch import Tensor

from dear.data.fewshot import base_novel
from dear.data.sources.benchmarks import Benchmark, benchmarks, published_names
from dear.evaluation.environment import peak, start_counting
from dear.evaluation.metrics import evaluate
from dear.training.loop import train
from dear.training.settings import TrainSettings

POOL = 1024


class Pictures:
    """A given number of labelled images, which repeat the pictures of a pool in turn."""

    def __init__(self, pool: UInt8[Tensor, "picture 3 size size"], labels: Int[Tensor, "item"]) -> None:
        self.pool, self.labels, self.identity = pool, labels, f"{len(labels)} random pictures"

    def __len__(self) -> int:
        return len(self.labels)

    def load(self, indices: Int[Tensor, "batch"]) -> UInt8[Tensor, "batch 3 size size"]:
        return self.pool[indices % len(self.pool)]


def spread(items: int, classes: int) -> Int[Tensor, "item"]:
    """Labels of so many items, spread over the classes as evenly as possible."""
    return torch.arange(items) % classes


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--precision", default="auto", help="Fabric's: bf16-mixed on a GPU if auto")
    options = parsed(made)
    if not options.tiny and not options.device.startswith("cuda"):
        raise SystemExit("without a GPU the sweep would take days: give --device cuda, or --tiny to try it.")
    _, clip = network(options)
    size = clip.image_size
    generator = torch.Generator().manual_seed(0)
    pool = torch.randint(0, 256, (POOL, 3, size, size), dtype=torch.uint8, generator=generator)
    settings = TrainSettings(epochs=2 if options.tiny else 10, precision=options.precision)
    shots, part = (2, 100) if options.tiny else (16, 1)
    rows = []
    start_counting()
    for benchmark in benchmarks().values():
        if "train" not in benchmark.published:
            continue  # a variant of ImageNet, used for testing only
        rows.append(_row(benchmark, clip, pool, settings, shots, part))
    whole = {
        "data set": "all",
        **{name: sum(row[name] for row in rows) for name in ("classes", "steps", "test images")},  # type: ignore[misc]
        **{name: sum(row[name] for row in rows) for name in ("training s", "test s")},  # type: ignore[misc]
    }
    facts = {name: getattr(options, name) for name in ("model", "tiny", "device", "precision")}
    result = {
        "benchmark": "sweep",
        "machine": machine(),
        "settings": facts | {"epochs": settings.epochs, "shots": shots, "batch": settings.batch},
        "peak MiB": peak(),
        "rows": [*rows, _rates(whole)],
    }
    show(result, options)


def _row(
    benchmark: Benchmark,
    clip: object,
    pool: UInt8[Tensor, "picture 3 size size"],
    settings: TrainSettings,
    shots: int,
    part: int,
) -> dict[str, object]:
    """Seconds of training on the base classes of a data set and of both tests."""
    names = published_names(benchmark)
    base, novel = base_novel(len(names))
    start = time.perf_counter()
    method = dear_on(clip, [names[label] for label in base], template=benchmark.template)  # type: ignore[arg-type]
    few = Pictures(pool, spread(shots * len(base), len(base)))
    train(method, few, settings, seed=1)
    trained = time.perf_counter()
    tested = 0
    for classes in (base, novel):
        method.set_classes([names[label] for label in classes], [benchmark.template])
        images = benchmark.published["test"] * len(classes) // len(names) // part
        evaluate(method, Pictures(pool, spread(max(images, 1), len(classes))), precision=settings.precision)
        tested += images
    steps = settings.epochs * -(-len(few) // settings.batch)
    row: dict[str, object] = {"data set": benchmark.title, "classes": len(names), "steps": steps}
    row |= {"training s": trained - start, "test images": tested, "test s": time.perf_counter() - trained}
    return _rates(row)


def _rates(row: dict[str, object]) -> dict[str, object]:
    steps, images = row["steps"], row["test images"]
    return row | {"ms a step": 1000 * row["training s"] / steps, "images/s": images / row["test s"]}  # type: ignore[operator]


if __name__ == "__main__":
    main()
