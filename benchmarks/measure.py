"""Shared parts of the benchmarks: a clock, a matrix rate, peak memory, machine facts, a model to time; and of
studies of accuracy: their options, and what DeAR+ reads of images.
"""

import argparse
import copy
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import open_clip
import torch
from table import table
from torch.utils.flop_counter import FlopCounterMode

from dear.backbone.clip import Clip
from dear.backbone.load import build_from, build_random, load_clip
from dear.backbone.preprocess import Preprocess
from dear.backbone.tiny import WordTokenizer
from dear.backbone.whole import image_side
from dear.data.dataset import Dataset
from dear.data.loading import load_dataset
from dear.evaluation.environment import peak, start_counting
from dear.evaluation.protocols.few_shot import FewShot
from dear.evaluation.resolve import MethodSetup
from dear.evaluation.run_context import RunContext
from dear.methods.dear import DearSettings
from dear.methods.dear.method import Dear
from dear.methods.dear_plus.method import DearPlus
from dear.roles.packaged import find_role_table
from dear.roles.table import HeadRole, Role, RoleTable
from dear.training.batches import training_images
from dear.training.seeding import generator
from dear.training.trunks import TrunkCache

NAMES = Path(__file__).parents[1] / "src/dear/data/sources/classnames/ImageNet.txt"
ATTRIBUTES = ("color", "shape", "texture", "object", "location")
HALF = (0.5, 0.5, 0.5)
TINY: dict[str, Any] = {
    "embed_dim": 32,
    "vision_cfg": {"image_size": 32, "layers": 6, "width": 64, "head_width": 16, "patch_size": 8},
    "text_cfg": {"context_length": 77, "vocab_size": 49408, "width": 64, "heads": 4, "layers": 6},
}


def parser(text: str | None) -> argparse.ArgumentParser:
    """The options of every benchmark that times a model."""
    made = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--model", default="ViT-B-16", help="an open_clip architecture; its weights are random")
    made.add_argument("--tiny", action="store_true", help="a tiny network, to try the benchmark out")
    made.add_argument("--repeats", type=int, default=3, help="repetitions of each timing, in turn")
    made.add_argument("--threads", type=int, default=0, help="torch's threads; 0: its own default")
    made.add_argument("--device", default="cpu")
    made.add_argument("--json", action="store_true", help="print JSON instead of a table")
    made.add_argument("--out", type=Path, help="also write the JSON to this file")
    return made


def parsed(made: argparse.ArgumentParser) -> argparse.Namespace:
    options = made.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    if options.device.startswith("cuda") and not torch.cuda.is_available():
        raise SystemExit("--device cuda: no GPU is available.")
    return options


def network(options: argparse.Namespace) -> tuple[Any, Clip]:
    """An open_clip model with random weights, and the same model as a frozen Clip."""
    if options.tiny:
        name, tokenizer = "tiny network", WordTokenizer(["color", "shape"], 77)  # those of ATPrompt
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(0)
            model = build_from(name, copy.deepcopy(TINY))
    else:
        model, name = build_random(options.model, 0), options.model
        tokenizer = open_clip.get_tokenizer(options.model)
    model = model.eval().to(options.device)
    clip = Clip(
        model,
        tokenizer,
        name=name,
        pretrained="random:0",
        preprocess=Preprocess(image_side(model.visual), HALF, HALF),
    )
    return model, clip.to(options.device)


def class_names(count: int) -> list[str]:
    """The first names of ImageNet's classes."""
    return NAMES.read_text(encoding="utf-8").splitlines()[:count]


def role_table(clip: Clip) -> RoleTable:
    """Eight kinds of heads in rotation: a core head of each attribute and three others."""
    kinds: list[tuple[Role, str | None]] = [("core", attribute) for attribute in ATTRIBUTES]
    kinds += [("generalization", None), ("other-specialized", None), ("mixed", None)]
    places = [(layer, head) for layer in range(1, clip.image.depth + 1) for head in range(clip.image.heads)]
    heads = tuple(HeadRole(*place, *kinds[i % len(kinds)]) for i, place in enumerate(places))
    return RoleTable("dealt out", clip.identity, ATTRIBUTES, heads)


def dear_on(
    clip: Clip, classnames: Sequence[str], template: str = "a photo of a {}.", **settings: Any
) -> Dear:
    """DeAR with the roles of ``role_table``."""
    method = Dear(clip, role_table(clip), torch.Generator().manual_seed(0), DearSettings(**settings))
    method.to(clip.image.projection.device)
    method.set_classes(classnames, [template])
    return method


def in_turn(
    work: dict[str, Callable[[], object]], repeats: int, device: str = "cpu"
) -> dict[str, list[float]]:
    """Seconds of each, timed in turn so that other load on the machine affects all of them."""
    return both_clocks(work, repeats, device)[0]


def both_clocks(
    work: dict[str, Callable[[], object]], repeats: int, device: str = "cpu"
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """The same, and beside it the CPU seconds of all threads of the process."""
    wall: dict[str, list[float]] = {name: [] for name in work}
    cpu: dict[str, list[float]] = {name: [] for name in work}
    wait = torch.cuda.synchronize if device.startswith("cuda") else lambda: None
    for _ in range(repeats):
        for name, one in work.items():
            wait()
            start, busy = time.perf_counter(), time.process_time()
            one()
            wait()
            wall[name].append(time.perf_counter() - start)
            cpu[name].append(time.process_time() - busy)
    return wall, cpu


def medians(seconds: dict[str, list[float]]) -> dict[str, float]:
    return {name: statistics.median(one) for name, one in seconds.items()}


def matrix_rate(options: argparse.Namespace, kind: torch.dtype = torch.float32) -> float:
    """Operations per second of a product of square matrices: the best of seven, which noise cannot raise."""
    device, side = options.device, 256 if options.tiny else 3072
    one, other = (torch.randn(side, side, device=device).to(kind) for _ in range(2))
    seconds = in_turn({"product": lambda: one @ other}, 7, device)["product"]
    return 2 * side**3 / min(seconds)


def count_flops(work: Callable[[], object]) -> int:
    """Operations of matrix products, convolutions and attention; a multiply-add counts as two."""
    with torch.enable_grad(), FlopCounterMode(display=False) as counter:  # torch's tracker needs gradients
        work()
    return int(counter.get_total_flops())


def step_memory(work: Callable[[], object], device: str) -> dict[str, float]:
    """MiB before a step and at its peak: resident memory, or the GPU's allocated memory."""
    if not start_counting() and device == "cpu":
        raise SystemExit("the peak of resident memory cannot be reset here: leave out --memory.")
    kind = "gpu" if device.startswith("cuda") else "resident"
    before = float(peak()[kind] or 0)
    work()
    highest = float(peak()[kind] or 0)
    return {"before": before, "peak": highest, "step": round(highest - before, 1)}


def in_child(arguments: Sequence[str]) -> Any:
    """The JSON output of this script, run in a separate process with other arguments."""
    done = subprocess.run(
        [sys.executable, sys.argv[0], *arguments], stdout=subprocess.PIPE, text=True, check=True
    )
    return json.loads(done.stdout)


def machine() -> dict[str, Any]:
    """Facts about the machine, without host names or paths (Linux)."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    found: dict[str, Any] = {
        "processor": next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")),
        "cores": len(os.sched_getaffinity(0)),
        "threads": torch.get_num_threads(),
        "system": platform.system(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
    }
    return found | ({"gpu": torch.cuda.get_device_name()} if torch.cuda.is_available() else {})


def show(result: dict[str, Any], options: argparse.Namespace) -> None:
    """Print the rows as a table, or everything as JSON; write the JSON to a file on request."""
    text = json.dumps(result, indent=1)
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(text + "\n", encoding="utf-8")
    if options.json:
        print(text)
        return
    print(json.dumps(result["machine"]))
    print("\n".join(table(result["rows"])))


def study_parser(text: str | None, shots: str) -> argparse.ArgumentParser:
    """The options of every study of accuracy; lists are written with commas."""
    made = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--data", required=True)
    made.add_argument("--model", default="tiny")
    made.add_argument("--shots", default=shots)
    made.add_argument("--seeds", default="1,2,3")
    return made


def cases(options: argparse.Namespace) -> list[tuple[int, int]]:
    """The shots and seeds of a study."""
    return [
        (int(shots), int(seed)) for shots in options.shots.split(",") for seed in options.seeds.split(",")
    ]


def readouts(options: argparse.Namespace) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each data set's name and readouts, which are kept in the file of ``options.features``."""
    known = torch.load(options.features) if options.features and options.features.exists() else {}
    clip = None
    for name in options.data.split(","):
        if name not in known:
            clip = clip or load_clip(options.model)
            known[name] = read(clip, load_dataset(name))
            if options.features:
                torch.save(known, options.features)
        yield name, known[name]


@torch.no_grad()
def read(clip: Clip, dataset: Dataset) -> dict[str, Any]:
    """The readouts of all images, of training images with two random views, as DeAR+ takes them."""
    table = find_role_table(clip)
    run = RunContext(clip, table).resolve(FewShot(), [dataset], MethodSetup("dear+"), seed=1, shots=1)
    method = DearPlus(clip, table, generator(1, "parameters")).eval()
    method.set_classes(dataset.classnames, dataset.templates)
    found = dict[str, Any]()
    for part in ("train", "val", "test"):
        if (images := getattr(dataset, part)) is None:
            continue
        source = training_images(method, images, run.training, 1, TrunkCache(0))
        views = (None, 0, 1) if part == "train" else (None,)
        frozen, groups = (
            torch.stack(parts, dim=1).double()
            for parts in zip(*(method._read(source, view) for view in views), strict=True)
        )
        found[part] = frozen, groups, images.labels
    carried = [name not in method.unowned for name in method.features[1:]]
    return found | {"text": float(clip.scale) * method.frozen_text.double(), "carried": carried}
