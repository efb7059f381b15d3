"""What benchmarks share: options, a model to time, clocks, operations, peak memory, and the result."""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import open_clip
import torch
from table import table
from torch.utils.flop_counter import FlopCounterMode

from dear.backbone.clip import Clip
from dear.backbone.features_only import image_side
from dear.backbone.loading.convert import to_clip
from dear.backbone.loading.open_clip_format import build_random
from dear.backbone.preprocess import Preprocess
from dear.evaluation.environment import peak, start_counting
from dear.methods.dear import DearSettings
from dear.methods.dear.method import Dear
from dear.roles.table import HeadRole, Role, RoleTable

NAMES = Path(__file__).parents[1] / "src/dear/data/sources/classnames/ImageNet.txt"
TEMPLATE = "a photo of a {}."
ATTRIBUTES = ("color", "shape", "texture", "object", "location")
KINDS: list[tuple[Role, str | None]] = [
    *(("core", attribute) for attribute in ATTRIBUTES),
    *(("generalization", None), ("other-specialized", None), ("mixed", None)),
]
HALF = (0.5, 0.5, 0.5)
Work = Mapping[str, Callable[[], object]]


def make_parser(text: str | None) -> argparse.ArgumentParser:
    """The options of every benchmark that times a model."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--model", default="ViT-B-16", help="an open_clip architecture; its weights are random"
    )
    parser.add_argument("--repeats", type=int, default=3, help="repetitions of each timing, in turn")
    parser.add_argument("--threads", type=int, default=0, help="torch's threads; 0: its own default")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, help="write the result to this file, too, as JSON")
    return parser


def parse(parser: argparse.ArgumentParser) -> argparse.Namespace:
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    if options.device.startswith("cuda") and not torch.cuda.is_available():
        raise SystemExit("--device cuda: no GPU is available.")
    return options


def build_network(options: argparse.Namespace) -> tuple[Any, Clip]:
    """An open_clip model with random weights, and the same model as a frozen Clip."""
    model = build_random(options.model, 0).eval().to(options.device)
    preprocess = Preprocess(image_side(model.visual), HALF, HALF)
    tokenizer = open_clip.get_tokenizer(options.model)
    clip = to_clip(model, tokenizer, name=options.model, pretrained="random:0", preprocess=preprocess)
    return model, clip.to(options.device)


def class_names(count: int) -> list[str]:
    """The first names of ImageNet's classes."""
    return NAMES.read_text(encoding="utf-8").splitlines()[:count]


def role_table(clip: Clip) -> RoleTable:
    """Eight kinds of heads in rotation: a core head of each attribute and three others."""
    places = [(layer, head) for layer in range(1, clip.image.depth + 1) for head in range(clip.image.heads)]
    heads = tuple(HeadRole(*place, *KINDS[i % len(KINDS)]) for i, place in enumerate(places))
    return RoleTable("dealt out", clip.identity, ATTRIBUTES, heads)


def dear_on(clip: Clip, classnames: Sequence[str]) -> Dear:
    """DeAR with the roles of ``role_table``."""
    method = Dear(clip, torch.Generator().manual_seed(0), DearSettings(), roles=role_table(clip))
    method.to(clip.image.projection.device)
    method.set_classes(classnames, [TEMPLATE])
    return method


@dataclass
class Timing:
    """Seconds of repeated work, on the wall and of all threads of the process."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        return statistics.median(self.wall)

    @property
    def cpu_seconds(self) -> float:
        return statistics.median(self.cpu)

    @property
    def all_seconds(self) -> list[float]:
        return [round(seconds, 4) for seconds in self.wall]


def time_in_turn(work: Work, repeats: int, device: str = "cpu") -> dict[str, Timing]:
    """Each is timed in turn, so that other load on the machine affects all of them."""
    timings = {name: Timing() for name in work}
    wait = torch.cuda.synchronize if device.startswith("cuda") else lambda: None
    for _ in range(repeats):
        for name, run in work.items():
            wait()
            start, busy = time.perf_counter(), time.process_time()
            run()
            wait()
            timings[name].wall.append(time.perf_counter() - start)
            timings[name].cpu.append(time.process_time() - busy)
    return timings


def matrix_rate(device: str, dtype: torch.dtype = torch.float32) -> float:
    """Operations per second of a product of square matrices: the best of seven, which noise cannot raise."""
    left, right = (torch.randn(3072, 3072, device=device).to(dtype) for _ in range(2))
    return 2 * 3072**3 / min(time_in_turn({"product": lambda: left @ right}, 7, device)["product"].wall)


def count_flops(work: Callable[[], object]) -> int:
    """Operations of matrix products, convolutions and attention; a multiply-add counts as two."""
    with torch.enable_grad(), FlopCounterMode(display=False) as counter:  # torch's tracker needs gradients
        work()
    return int(counter.get_total_flops())


def step_memory(work: Callable[[], object], device: str) -> dict[str, float]:
    """MiB that a step adds, and at its peak: resident memory, or the GPU's allocated memory."""
    if not start_counting() and device == "cpu":
        raise SystemExit("the peak of resident memory cannot be reset here.")
    kind = "gpu" if device.startswith("cuda") else "resident"
    before = float(peak()[kind] or 0)
    work()
    highest = float(peak()[kind] or 0)
    return {"step MiB": round(highest - before, 1), "peak MiB": highest}


def in_child(arguments: Sequence[object]) -> Any:
    """The JSON output of this script, run in a process of its own with other arguments."""
    command = [sys.executable, sys.argv[0], *map(str, arguments)]
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)


def describe_machine() -> dict[str, Any]:
    """Facts about the machine, without host names or paths (Linux)."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    facts: dict[str, Any] = {
        "processor": next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")),
        "cores": len(os.sched_getaffinity(0)),
        "threads": torch.get_num_threads(),
        "system": platform.system(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
    }
    return facts | ({"gpu": torch.cuda.get_device_name()} if torch.cuda.is_available() else {})


def show(
    options: argparse.Namespace, rows: list[dict[str, Any]], settings: Sequence[str], **facts: Any
) -> None:
    """Print the rows as a table; on request write them to a file, with the machine and the settings."""
    machine = describe_machine()
    used = {name: getattr(options, name) for name in settings}
    if options.out is not None:
        result = {"machine": machine, **facts, "settings": used, "rows": rows}
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(machine))
    print("\n".join(table(rows)))
