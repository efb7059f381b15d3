"""A bundle from a hub, whatever is in its files: it is refused by a DearError, or predicts finite numbers."""

import json
import struct
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, get_type_hints

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save
from torch import Tensor

from dear.adapters.bundle import Bundle
from dear.adapters.bundle_config import ADAPTER, CONFIG, LIBRARY, config_hash
from dear.adapters.predictor import Predictor
from dear.backbone.clip import Clip, tensors_hash
from dear.errors import DearError
from dear.methods.registry import METHODS
from tests.conftest import small_clip_of
from tests.helpers.bundles import fitted
from tests.helpers.methods import images

QUICKLY = settings(max_examples=60, deadline=None, derandomize=True)
VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-2, 3), st.sampled_from([-(2**63), 2**40, 2**63, 10**30]),
    st.floats(), st.text(max_size=5),
    st.sampled_from([[], {}, [[]], ["x"] * 3, {"x": 1}, "../x", "a" * 5000]),
)  # fmt: skip
ENTRIES = st.sampled_from(["F64", "I8", "F4", "BOOL", [0, 2**40], [2**50, 0]])


@cache
def bundle() -> tuple[Clip, Bundle]:
    clip = small_clip_of()
    return clip, fitted("dear", clip)[0]


def write(bundle: Bundle, folder: Path, changes: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Write the files of a bundle, whatever is in it, with hashes that fit."""
    plain = {name: tensor.contiguous() for name, tensor in (dict(bundle.tensors) | tensors).items()}
    shapes = {name: [*tensor.shape] for name, tensor in plain.items()}
    (folder / ADAPTER).write_bytes(save(plain))
    content = bundle.config() | {"library": {"name": LIBRARY, "version": "0"}}
    content["adapter"] = {"sha256": tensors_hash(plain), "shapes": shapes}
    write_config(folder, content | changes)


def write_config(folder: Path, content: dict[str, Any]) -> None:
    (folder / CONFIG).write_text(json.dumps(content | {"sha256": config_hash(content)}))


def outcome(folder: Path, clip: Clip) -> str:
    """How using a bundle ended. Anything but a DearError is raised."""
    try:
        predictor = Predictor(folder, clip=clip)
        logits = predictor.logits(images())
        predictor.best_classes(predictor.encode(images()), predictor.vocabulary(), top=2)
    except DearError:
        return "refused"
    assert logits.isfinite().all()
    return "predicts"


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Each holder of a value within a nested one, with the key or number of the value there."""
    for key in value if isinstance(value, dict) else range(min(len(value), 3)):
        yield value, key
        if isinstance(value[key], dict | list):
            yield from places(value[key])


@QUICKLY
@given(draw=st.data())
def test_values_of_the_configuration(draw: st.DataObject) -> None:
    clip, good = bundle()
    with TemporaryDirectory() as name:
        folder = Path(name)
        write(good, folder, {}, {})
        content = json.loads((folder / CONFIG).read_text())
        for _ in range(draw.draw(st.integers(1, 2))):
            holder, key = draw.draw(st.sampled_from([*places(content)]))
            if draw.draw(st.booleans()) or isinstance(holder, list):
                holder[key] = draw.draw(VALUES)
            else:
                del holder[key]
        write_config(folder, content)
        outcome(folder, clip)


@QUICKLY
@given(draw=st.data())
def test_the_header_of_the_tensors(draw: st.DataObject) -> None:
    clip, good = bundle()
    with TemporaryDirectory() as name:
        folder = Path(name)
        write(good, folder, {}, {})
        content = (folder / ADAPTER).read_bytes()
        (length,) = struct.unpack("<Q", content[:8])
        header, values = json.loads(content[8 : 8 + length]), content[8 + length :]
        if draw.draw(st.booleans()):
            holder, key = draw.draw(st.sampled_from([*places(header)]))
            holder[key] = draw.draw(VALUES | ENTRIES)
            text = json.dumps(header).encode()
            content = struct.pack("<Q", len(text)) + text + values
        else:
            content = content[: draw.draw(st.integers(0, 8 + length))] + draw.draw(st.binary(max_size=9))
        (folder / ADAPTER).write_bytes(content)
        config = json.loads((folder / CONFIG).read_text())
        if draw.draw(st.booleans()):  # shapes that fit the header
            shapes = {key: entry.get("shape") for key, entry in header.items() if isinstance(entry, dict)}
            write_config(folder, config | {"adapter": config["adapter"] | {"shapes": shapes}})
        outcome(folder, clip)


def test_terabytes_are_refused_before_they_are_allocated(tmp_path: Path) -> None:
    clip, good = bundle()
    write(good, tmp_path, {}, {})
    header = json.dumps({"x": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]}}).encode()
    (tmp_path / ADAPTER).write_bytes(struct.pack("<Q", len(header)) + header)
    with pytest.raises(DearError, match=ADAPTER):
        Predictor(tmp_path, clip=clip)
    write(good, tmp_path, {}, {"far": torch.zeros(2**40, 0)})
    assert outcome(tmp_path, clip) == "refused"


@pytest.mark.parametrize("name", METHODS)
def test_settings_and_tensors_of_each_method(name: str, tmp_path: Path) -> None:
    """Sizes out of bounds, and tensors of another shape or type, or with values that are not finite."""
    clip = small_clip_of()
    good, _ = fitted(name, clip)
    write(good, tmp_path, {}, {})
    assert outcome(tmp_path, clip) == "predicts"
    for setting, kind in get_type_hints(METHODS[name].settings).items():
        for value in {int: (0, 10**12), float: (1e30,)}.get(kind, ()):
            write(good, tmp_path, {"settings": good.config()["settings"] | {setting: value}}, {})
            ended = outcome(tmp_path, clip)
            assert not (value in (10**12, 1e30) and ended == "predicts"), setting
    for key, tensor in [*good.tensors.items()][:2]:
        bad = [tensor.new_zeros(3_000_000, 0), tensor.new_zeros(()), tensor.to(torch.complex64)]
        if tensor.is_floating_point():
            bad.append(torch.full_like(tensor, torch.nan))
        for changed in bad:
            write(good, tmp_path, {}, {key: changed})
            assert outcome(tmp_path, clip) == "refused" or changed.shape == tensor.shape == (), key
    if (roles := good.config()["roles"]) is not None:
        more = [f"attribute {number}" for number in range(20_000)]
        for attributes in (2 * [*roles["attributes"]], [*roles["attributes"], *more]):
            write(good, tmp_path, {"roles": roles | {"attributes": attributes}}, {})
            assert outcome(tmp_path, clip) == "refused"
