"""Weights in several files: the same tensors as in one, and nothing outside their folder."""

import json
from pathlib import Path

import pytest
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
    "weight_map",
    [
        *({"a": f"{folder}a.safetensors"} for folder in ("../", "/etc/", "..\\")),
        {"a": ".."}, {"a": "a.bin"}, {"a": 3}, {}, [], None,
    ],
    ids=str,
)  # fmt: skip
def test_an_index_of_another_form_or_of_files_elsewhere_is_refused(
    weight_map: object, tmp_path: Path, state: dict[str, Tensor]
) -> None:
    index = write_sharded(tmp_path / "w", state)
    index.write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(WeightsError, match=r"index\.json"):
        load_clip(NAME, str(index))


def test_an_index_as_local_weights(
    tmp_path: Path, state: dict[str, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    index = write_sharded(tmp_path / "w", state)
    assert load_clip(NAME, str(index)).identity.sha256 == load_clip(NAME, "random:3").identity.sha256
    size = max(path.stat().st_size for path in index.parent.glob("*.safetensors"))
    monkeypatch.setenv("DEAR_LIMIT_TENSOR_BYTES", str(size))
    with pytest.raises(LimitError, match="DEAR_LIMIT_TENSOR_BYTES"):  # together they are larger
        load_clip(NAME, str(index))
    (tmp_path / "w" / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(WeightsError, match=r"model-00002-of-00002\.safetensors"):
        load_clip(NAME, str(index))
