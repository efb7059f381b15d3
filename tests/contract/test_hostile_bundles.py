"""Bundles that no training makes: each is refused, or predicts finite numbers, in little memory."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save
from torch import Tensor

from dear.adapters.bundle import Bundle
from dear.adapters.bundle_config import ADAPTER, CONFIG, LIBRARY, config_hash
from dear.adapters.predictor import Predictor
from dear.backbone.clip import Clip, tensors_hash
from dear.errors import DearError
from dear.methods.registry import METHODS
from tests.contract.test_methods import images
from tests.unit.adapters.test_bundle import fitted

ROOM = 300 * 2**20
MANY = 3_000_000
STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
EACH_OF = 7
"""Of the cases of a tensor `make test` tries one in so many, and `make test-long` all."""

pytestmark = [
    pytest.mark.skipif(not os.access(CLEAR, os.W_OK), reason="needs /proc"),
    pytest.mark.filterwarnings("ignore:Casting complex values"),
]


def memory(kind: str) -> int:
    """Bytes of the process: VmRSS now, VmHWM at the most since it was set back."""
    (line,) = [line for line in STATUS.read_text().splitlines() if line.startswith(f"{kind}:")]
    return 1024 * int(line.split()[1])


def full(value: float, tensor: Tensor) -> Tensor:
    if tensor.is_floating_point():
        return torch.full_like(tensor, value)
    return torch.full_like(tensor, 2**62)


def first(value: float, tensor: Tensor) -> Tensor:
    changed = tensor.clone() if tensor.is_floating_point() else tensor.float()
    changed.flatten()[:1] = value
    return changed


def repeated(tensor: Tensor) -> Tensor:
    return tensor[:1].expand_as(tensor).clone()


OF_TENSORS: dict[str, Callable[[Tensor], Tensor]] = {
    "n x 0": lambda tensor: tensor.new_zeros(MANY, 0, *[1] * (tensor.ndim - 2)),
    "0 x n": lambda tensor: tensor.new_zeros(0, MANY, *[1] * (tensor.ndim - 2)),
    "2^40 x 0": lambda tensor: tensor.new_zeros(2**40, 0),
    "scalar": lambda tensor: tensor.new_zeros(()),
    "n": lambda tensor: tensor.new_zeros(100_000),
    "whole": lambda tensor: tensor.long(),
    "bool": lambda tensor: tensor.bool(),
    "complex": lambda tensor: tensor.to(torch.complex64),
    "8 bits": lambda tensor: tensor.to(torch.float8_e4m3fn),
    "half": lambda tensor: tensor.half(),
    "NaN": partial(first, torch.nan),
    "infinite": partial(first, torch.inf),
    "large": partial(full, 1e38),
    "negative": partial(full, -1e38),
    "zero": torch.zeros_like,
    "repeated": repeated,
}


def of_tensors(bundle: Bundle) -> Iterator[tuple[str, Callable[[], dict[str, Tensor]]]]:
    """Other values of each tensor, made when they are asked for."""
    for name, tensor in bundle.tensors.items():
        for kind, change in OF_TENSORS.items():
            if tensor.ndim or kind != "repeated":
                yield f"{name} {kind}", lambda: {name: change(tensor)}  # noqa: B023 (called at once)


def of_lists(bundle: Bundle) -> Iterator[tuple[str, dict[str, Any]]]:
    """Other values of the configuration: whole numbers out of bounds, lists with duplicates or many items."""
    config = json.loads(json.dumps(bundle.config()))
    for setting in fields(bundle.settings):
        values = (0, -1, 10**6, 10**12) if setting.type is int else (0.0, -1.0, 1e30, 1e308)
        for value in values if setting.type in (int, float) else ():
            yield f"{setting.name} {value}", {"settings": config["settings"] | {setting.name: value}}
    for key in ("classes", "templates"):
        yield f"{key} twice", {key: config[key] * 2}
    yield "300 templates", {"templates": config["templates"] * 300}
    if (roles := config["roles"]) is not None:
        more = [f"attribute {number}" for number in range(20_000)]
        yield "attributes twice", {"roles": roles | {"attributes": roles["attributes"] * 2}}
        yield "20,000 attributes", {"roles": roles | {"attributes": roles["attributes"] + more}}
        yield "100 attributes", {"roles": roles | {"attributes": roles["attributes"] + more[:98]}}
        yield "heads twice", {"roles": roles | {"heads": roles["heads"] * 2}}
        shares = [head | {"share": {"color": -0.5, "object": 1.5}} for head in roles["heads"]]
        yield "negative shares", {"roles": roles | {"heads": shares}}


def write(bundle: Bundle, tensors: dict[str, Tensor], changes: dict[str, Any], folder: Path) -> None:
    """Write the files of a bundle, whatever is in it. `save_pretrained` also waits for the disk."""
    plain = {name: tensor.contiguous() for name, tensor in (dict(bundle.tensors) | tensors).items()}
    shapes = {name: [*tensor.shape] for name, tensor in plain.items()}
    (folder / ADAPTER).write_bytes(save(plain))
    config = bundle.config() | {
        "library": {"name": LIBRARY, "version": "0"},
        "adapter": {"sha256": tensors_hash(plain), "shapes": shapes},
        **changes,
    }
    (folder / CONFIG).write_text(json.dumps(config | {"sha256": config_hash(config)}))


def outcome(folder: Path, clip: Clip) -> str:
    """How using a bundle ended. Anything but a DearError is raised."""
    try:
        predictor = Predictor(folder, clip=clip)
        logits = predictor.logits(images())
        predictor.candidates(predictor.encode(images()), predictor.vocabulary(), top=2)
    except DearError:
        return "refused"
    assert logits.isfinite().all()
    return "predicts"


def attack(name: str, clip: Clip, folder: Path, each_of: int) -> dict[str, str]:
    """How the bundles of a method end, by case. Fails for too much memory."""
    bundle, _ = fitted(name, clip)
    write(bundle, {}, {}, folder)
    assert outcome(folder, clip) == "predicts"
    outcomes = dict[str, str]()

    def use(case: str, tensors: dict[str, Tensor], changes: dict[str, Any]) -> None:
        write(bundle, tensors, changes, folder)
        del tensors
        CLEAR.write_text("5")
        before = memory("VmRSS")
        try:
            outcomes[case] = outcome(folder, clip)
        except Exception as error:
            raise AssertionError(f"{name}: {case}") from error
        assert memory("VmHWM") - before < ROOM, f"{name}: {case} takes too much memory"

    for number, (case, tensors) in enumerate(of_tensors(bundle)):
        if number % each_of == 0:
            use(case, tensors(), {})
    for case, changes in of_lists(bundle):
        use(case, {}, changes)
    return outcomes


@pytest.mark.parametrize("name", METHODS)
def test_some_of_the_bundles_of_a_method(name: str, small_clip: Clip, tmp_path: Path) -> None:
    outcomes = attack(name, small_clip, tmp_path, EACH_OF)
    for case in ("classes twice", "heads twice", "attributes twice", "20,000 attributes", "negative shares"):
        assert outcomes.get(case, "refused") == "refused"


@pytest.mark.long
@pytest.mark.parametrize("name", METHODS)
def test_all_of_the_bundles_of_a_method(name: str, small_clip: Clip, tmp_path: Path) -> None:
    outcomes = attack(name, small_clip, tmp_path, 1)
    for case, ended in outcomes.items():
        if case.endswith((" n x 0", " 0 x n", " 2^40 x 0", " complex", " 8 bits", " NaN", " infinite")):
            assert ended == "refused", case


OUTLINES = """
import sys
import torch
from dear.backbone.load import load_clip
from dear.methods.registry import METHODS, build_method
from dear.roles.packaged import role_table

clip = load_clip("tiny")
small = {
    "atprompt": METHODS["atprompt"].settings(attributes="sea, tree", tokens=1),
    "tac": METHODS["tac"].settings(text_tokens=1),
}
for name in METHODS:
    build_method(name, clip.outline(), torch.Generator(), roles=role_table(clip), settings=small.get(name))
    assert "sympy" not in sys.modules, name
"""


def test_an_outline_needs_no_computing() -> None:
    """On the meta device torch computes in Python, with sympy: loading that takes seconds."""
    path = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", OUTLINES], check=True, timeout=300, env=path)
