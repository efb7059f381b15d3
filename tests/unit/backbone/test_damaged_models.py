"""A model of a hub whose files were changed loads with the tensors that its identity names, or is refused."""

import copy
import json
import resource
import shutil
import sys
import warnings
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from dear.backbone.clip import Clip
from dear.backbone.loading.load import load_clip
from dear.backbone.loading.open_clip_format import build_from, initial_weights_from
from dear.errors import DearError
from tests.helpers.clips import saved
from tests.unit.backbone.sharded_files import write_sharded
from tests.unit.backbone.tokenizer_files import write_tokenizer

SIZES = {"image_size": 8, "patch_size": 4, "width": 6, "head_width": 3, "layers": 1, "mlp_ratio": 2.0}
OPEN_CLIP: dict[str, Any] = {
    "embed_dim": 5,
    "vision_cfg": SIZES,
    "text_cfg": {
        "context_length": 7, "vocab_size": 30, "width": 4, "heads": 2, "layers": 1,
        "hf_tokenizer_name": "someone/words", "tokenizer_kwargs": {"clean": "canonicalize"},
        "norm_kwargs": {"eps": 1e-5},
    },
    "quick_gelu": False,
}  # fmt: skip
WEIGHTS = {
    "open_clip": "open_clip_model.safetensors",
    "sharded": "open_clip_model-00001-of-00002.safetensors",
    "transformers": "model.safetensors",
}
JSON = [
    ("open_clip", "open_clip_config.json"),
    ("open_clip", "tokenizer.json"),
    ("open_clip", "tokenizer_config.json"),
    ("sharded", "open_clip_model.safetensors.index.json"),
    ("transformers", "config.json"),
]
MOST_MEMORY = 2**29  # bytes beside those of the test run itself
FEW = settings(max_examples=8, deadline=None, derandomize=True)
ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from([0, -1, 1, 2, 3, 2**31, 2**62, 10**30, 1e308, 0.5, ""]),
    st.text(max_size=9),
    st.lists(st.integers(0, 9), max_size=3),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Path]]:
    """Models in the forms of open_clip, in one file and in several, and of transformers."""
    top = tmp_path_factory.mktemp("models")
    folders = {name: top / name for name in ("open_clip", "sharded", "transformers")}
    for folder in folders.values():
        folder.mkdir()
        write_tokenizer("T5", folder)
    saved(folders["transformers"], "Siglip")
    config = {"model_cfg": OPEN_CLIP, "preprocess_cfg": {"mean": [0.5] * 3, "std": [0.5] * 3}}
    for name in ("open_clip", "sharded"):
        (folders[name] / "open_clip_config.json").write_text(json.dumps(config))
    with initial_weights_from(3):
        state = dict(build_from("small", copy.deepcopy(OPEN_CLIP)).state_dict())
    save_file(state, folders["open_clip"] / "open_clip_model.safetensors")
    write_sharded(folders["sharded"], state, stem="open_clip_model")
    before = peak_memory()
    yield folders
    assert peak_memory() - before < MOST_MEMORY


def peak_memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def load(folder: Path) -> Clip | None:
    """The model, or None if it is refused."""
    with warnings.catch_warnings(), suppress(DearError):
        warnings.simplefilter("ignore")
        return load_clip(str(folder))
    return None


@cache
def load_whole(folder: Path) -> Clip:
    clip = load(folder)
    assert clip is not None
    return clip


def check(folder: Path, file: str, content: bytes) -> None:
    """Load the model with other content of a file."""
    copied = folder.with_name(f"{folder.name}-changed")
    shutil.copytree(folder, copied)
    (copied / file).write_bytes(content)
    changed, whole = load(copied), load_whole(folder)
    shutil.rmtree(copied)
    if changed is not None and changed.identity.sha256 == whole.identity.sha256:
        tensors, others = whole.state_dict(), changed.state_dict()
        assert tensors.keys() == others.keys()
        assert all(torch.equal(tensors[name], others[name]) for name in tensors)


@FEW
@given(st.data())
def test_bytes_of_weights(folders: dict[str, Path], data: st.DataObject) -> None:
    """Half of the changes are in the header, which says what is allocated."""
    name, file = data.draw(st.sampled_from([*WEIGHTS.items()]))
    content = bytearray((folders[name] / file).read_bytes())
    header = 8 + int.from_bytes(content[:8], "little")
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.one_of(st.integers(0, header - 1), st.integers(0, len(content) - 1)))
        content[at] = data.draw(st.integers(0, 255))
    end = data.draw(st.one_of(st.just(len(content)), st.integers(0, len(content))))
    check(folders[name], file, bytes(content[:end]))


@FEW
@given(st.data())
def test_values_of_json(folders: dict[str, Path], data: st.DataObject) -> None:
    name, file = data.draw(st.sampled_from(JSON))
    value = json.loads((folders[name] / file).read_text())
    holder, key = data.draw(st.sampled_from([*places(value)]))
    if data.draw(st.booleans()):
        holder[key] = data.draw(ODD)
    else:
        del holder[key]
    check(folders[name], file, json.dumps(value).encode())


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Each entry of a JSON value, by the list or object that holds it and its key."""
    for key, entry in [*value.items()] if isinstance(value, dict) else [*enumerate(value)]:
        yield value, key
        if isinstance(entry, dict | list):
            yield from places(entry)
