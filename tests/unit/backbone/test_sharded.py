"""Weights in several files: the same tensors as in one, and nothing outside their folder."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from dear.backbone import hub
from dear.backbone.clip import tensors_hash
from dear.backbone.load import load_clip
from dear.backbone.weights import list_shards
from dear.errors import WeightsError
from dear.limits import LimitError
from tests.standin_hub import COMMIT, StandIn
from tests.unit.backbone.prime import CONFIG, NAME
from tests.unit.backbone.sharded_files import write_sharded
from tests.unit.backbone.test_from_transformers import compare, saved

pytestmark = pytest.mark.usefixtures("prime_architecture")


def changed(index: Path, weight_map: Any) -> Path:
    index.write_text(json.dumps({"weight_map": weight_map}))
    return index


def test_an_index_as_local_weights(tmp_path: Path, state: dict[str, Tensor]) -> None:
    index = write_sharded(tmp_path / "w", state)
    assert load_clip(NAME, str(index)).identity.sha256 == load_clip(NAME, "random:3").identity.sha256


def test_a_folder_as_transformers_saves_large_models(tmp_path: Path) -> None:
    model = saved(tmp_path, "CLIP")
    (tmp_path / "model.safetensors").unlink()
    model.save_pretrained(tmp_path, max_shard_size="1MB")
    assert not (tmp_path / "model.safetensors").exists()
    assert len(list_shards(tmp_path / "model.safetensors.index.json")) > 1
    compare(load_clip(str(tmp_path)), model)


def test_a_repository_on_the_hub(tmp_path: Path, state: dict[str, Tensor], standin: StandIn) -> None:
    folder = tmp_path / "remote"
    write_sharded(folder, state, stem="open_clip_model")
    (folder / hub.CONFIG).write_text(json.dumps({"model_cfg": CONFIG}))
    standin.files["someone/large"] = {path.name: path.read_bytes() for path in folder.iterdir()}
    clip = load_clip("someone/large", named_by="the bundle b")  # for which no pickle is fetched
    assert tensors_hash(clip.state_dict()) == tensors_hash(load_clip(NAME, "random:3").state_dict())
    assert len(standin.downloads()) == 2
    asked = [path for _, path, _ in standin.requests if "-of-00002" in path and "/resolve/" in path]
    assert asked
    assert all(f"/resolve/{COMMIT}/" in path for path in asked)
    load_clip("someone/large")  # from the cache
    assert len(standin.downloads()) == 2


@pytest.mark.parametrize(
    "name", ["../w2/a.safetensors", "/etc/a.safetensors", "..", "a.bin", "..\\a.safetensors"]
)
def test_a_file_elsewhere_is_refused(name: str, tmp_path: Path, state: dict[str, Tensor]) -> None:
    index = write_sharded(tmp_path / "w", state)
    with pytest.raises(WeightsError, match=r"its weight_map names .*, no safetensors file beside it"):
        load_clip(NAME, str(changed(index, dict.fromkeys(state, name))))


def test_files_that_are_large_together_are_refused(
    tmp_path: Path, state: dict[str, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    index = write_sharded(tmp_path / "w", state)
    size = max(path.stat().st_size for path in index.parent.glob("*.safetensors"))
    monkeypatch.setenv("DEAR_LIMIT_TENSOR_BYTES", str(size))
    with pytest.raises(LimitError, match=r"bytes of a file of tensors"):
        load_clip(NAME, str(index))


def test_a_file_that_is_missing_is_named(tmp_path: Path, state: dict[str, Tensor]) -> None:
    index = write_sharded(tmp_path / "w", state)
    (tmp_path / "w" / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(WeightsError, match=r"No such file.*model-00002-of-00002\.safetensors"):
        load_clip(NAME, str(index))


def test_it_is_the_second_choice(tmp_path: Path, state: dict[str, Tensor]) -> None:
    """One file with all tensors is read first."""
    folder = tmp_path / "w"
    write_sharded(folder, {name: torch.zeros_like(one) for name, one in state.items()}, "open_clip_model")
    (folder / hub.CONFIG).write_text(json.dumps({"model_cfg": CONFIG}))
    save_file(state, folder / "open_clip_model.safetensors")
    loaded = load_clip(str(folder)).state_dict()
    assert tensors_hash(loaded) == tensors_hash(load_clip(NAME, "random:3").state_dict())
