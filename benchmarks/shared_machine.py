"""A training step beside busy neighbours: seconds, by how its threads wait and how many there are.

python benchmarks/shared_machine.py --out benchmarks/results/shared_machine.json

For each model, a process for each way of using the cores makes steps of DeAR in turn with the others: alone,
beside one and beside two neighbours (processes that only count), which the benchmark starts and ends.
Medians. Weights are random; "width N" is a ViT-B/16 of that width.
"""

import argparse
import copy
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import measure
import torch

from dear.backbone.clip import Clip
from dear.backbone.load import build_from, load_clip
from dear.backbone.preprocess import Preprocess
from dear.backbone.tiny import WordTokenizer
from dear.backbone.whole import image_side

PASSIVE = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "0", "KMP_BLOCKTIME": "0"}
WAYS: dict[str, dict[str, str]] = {
    "all cores, waiting busily": {},
    "all cores": PASSIVE,
    "one thread": {**PASSIVE, "OMP_NUM_THREADS": "1"},
}
"""Ways of using the cores, as environments: torch's default, and what the command line chooses from."""
MODELS = ("tiny", "width 192", "width 256", "width 320", "width 384", "width 512", "ViT-B-16")
WIDTH = "width "
NEIGHBOUR = "import os; parent = os.getppid()\nwhile os.getppid() == parent: sum(range(100_000))"


def main() -> None:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--models", nargs="+", default=MODELS, help="tiny, width N or open_clip's names")
    made.add_argument("--neighbours", type=int, nargs="+", default=[0, 1, 2])
    made.add_argument("--batch", type=int, default=8)
    made.add_argument("--classes", type=int, default=50)
    made.add_argument("--repeats", type=int, default=5)
    made.add_argument("--seconds", type=float, default=1.0, help="the least time of a measurement alone")
    made.add_argument("--json", action="store_true", help="print JSON instead of a table")
    made.add_argument("--out", type=Path, help="also write the JSON to this file")
    made.add_argument("--child", help=argparse.SUPPRESS)
    options = made.parse_args()
    if options.child:
        serve(step_of(options.child, options))
        return
    rows = [row for model in options.models for row in compared(model, options)]
    kept = {name: getattr(options, name) for name in ("batch", "classes", "repeats")}
    measure.show({"machine": measure.machine(), "settings": kept, "rows": rows}, options)


def compared(model: str, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A row for each number of neighbours: wall and CPU seconds of a step in each way."""
    children = {way: child(model, environment, options) for way, environment in WAYS.items()}
    try:
        for one in children.values():
            ask(one, 1)  # the first step also allocates
        alone = {way: ask(one, 1)[0] for way, one in children.items()}
        steps = {way: max(1, round(options.seconds / seconds)) for way, seconds in alone.items()}
        for count in options.neighbours:
            wall: dict[str, list[float]] = {way: [] for way in WAYS}
            cpu: dict[str, list[float]] = {way: [] for way in WAYS}
            with neighbours(count):
                for _ in range(options.repeats):
                    for way, one in children.items():
                        seconds, used = ask(one, steps[way])
                        wall[way].append(seconds / steps[way])
                        cpu[way].append(used / steps[way])
            row: dict[str, Any] = {"model": model, "neighbours": count}
            for way in WAYS:
                row[f"{way}: s"] = statistics.median(wall[way])
                row[f"{way}: CPU s"] = statistics.median(cpu[way])
            yield row
    finally:
        for one in children.values():
            one.kill()
            one.wait()


@contextmanager
def neighbours(count: int) -> Iterator[None]:
    """So many processes that keep a core busy each, at the priority of this one."""
    started = [subprocess.Popen([sys.executable, "-c", NEIGHBOUR]) for _ in range(count)]
    try:
        time.sleep(0.2 if started else 0)
        yield
    finally:
        for one in started:
            one.kill()
            one.wait()


def child(model: str, environment: dict[str, str], options: argparse.Namespace) -> "subprocess.Popen[str]":
    """A process that makes steps when it is asked to: OpenMP reads its settings only once."""
    set_before = {*PASSIVE, "OMP_NUM_THREADS", "MKL_NUM_THREADS", "DEAR_THREADS"}
    kept = {name: value for name, value in os.environ.items() if name not in set_before}
    sizes = ["--batch", str(options.batch), "--classes", str(options.classes)]
    return subprocess.Popen(
        [sys.executable, __file__, "--child", model, *sizes],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**kept, **environment},
    )


def ask(one: "subprocess.Popen[str]", steps: int) -> tuple[float, float]:
    """Wall and CPU seconds of so many steps of a child. Raises RuntimeError if it has ended."""
    assert one.stdin is not None
    assert one.stdout is not None
    one.stdin.write(f"{steps}\n")
    one.stdin.flush()
    answer = one.stdout.readline().split()
    if len(answer) != 2:
        raise RuntimeError(f"a process that makes the steps has ended: {one.args}")
    return float(answer[0]), float(answer[1])


def serve(step: Callable[[], object]) -> None:
    """Make as many steps as each line of stdin says; answer with wall and CPU seconds of all threads."""
    for line in sys.stdin:
        start, used = time.perf_counter(), time.process_time()
        for _ in range(int(line)):
            step()
        print(time.perf_counter() - start, time.process_time() - used, flush=True)


def step_of(model: str, options: argparse.Namespace) -> Callable[[], object]:
    """A training step of DeAR: forward and backward."""
    names = [f"thing {number}" for number in range(options.classes)]
    clip = clip_of(model)
    method = measure.dear_on(clip, names)
    pixels = torch.rand(options.batch, 3, clip.image_size, clip.image_size)
    labels = torch.arange(options.batch) % options.classes

    def step() -> None:
        for parameter in method.parameters():
            parameter.grad = None
        method.loss(method.image_trunk(pixels), labels)["loss"].backward()

    return step


def clip_of(model: str) -> Clip:
    if model == "tiny":
        return load_clip("tiny")
    if not model.startswith(WIDTH):
        return load_clip(model, "random:0")
    width = int(model.removeprefix(WIDTH))
    sizes = {"width": width, "layers": 12}
    config = copy.deepcopy(measure.TINY) | {
        "embed_dim": min(width, 512),
        "vision_cfg": {**sizes, "image_size": 224, "patch_size": 16, "head_width": 64},
        "text_cfg": {**sizes, "context_length": 77, "vocab_size": 49408, "heads": width // 64},
    }
    network = build_from(model, config).eval()
    half = measure.HALF
    return Clip(
        network,
        WordTokenizer([], 77),
        name=model,
        pretrained="random",
        preprocess=Preprocess(image_side(network.visual), half, half),
    )


if __name__ == "__main__":
    main()
