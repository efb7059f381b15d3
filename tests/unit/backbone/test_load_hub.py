"""Loading a repository of the Hugging Face hub from the cache."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from dear.backbone import hub
from dear.backbone.load import load_clip
from dear.errors import WeightsError
from tests.unit.backbone.prime import CONFIG, MEAN, NAME, STD, features

pytestmark = pytest.mark.usefixtures("prime_architecture")


class TestHub:
    """A repository in open_clip's form, as the hub's cache holds it."""

    @pytest.fixture
    def repository(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        folder = tmp_path / "snapshot"
        folder.mkdir()
        pixels = {"mean": list(MEAN), "std": list(STD)}
        (folder / hub.CONFIG).write_text(json.dumps({"model_cfg": CONFIG, "preprocess_cfg": pixels}))

        def cached(
            repository: str, file: str, cache_dir: str | None = None, revision: str | None = None
        ) -> str | None:
            assert (repository, cache_dir, revision) == ("someone/prime", None, None)
            return str(folder / file) if (folder / file).is_file() else None

        monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", cached)
        return folder

    def test_it_brings_weights_and_pixels(self, repository: Path, state: dict[str, Tensor]) -> None:
        save_file(state, repository / "open_clip_model.safetensors")
        clip = load_clip("hf-hub:someone/prime")
        source = load_clip(NAME, "random:3")
        assert (clip.identity.model, clip.identity.pretrained) == ("hf-hub:someone/prime", "hub")
        torch.testing.assert_close(clip.mean.flatten(), torch.tensor(MEAN))
        assert torch.equal(features(clip)[1], features(source)[1])
        assert clip.identity != source.identity  # its configuration may change

    def test_other_weights(self, repository: Path, weights: Path) -> None:
        assert repository.is_dir()
        clip = load_clip("hf-hub:someone/prime", str(weights))
        assert clip.identity.sha256 == load_clip("hf-hub:someone/prime", "random:3").identity.sha256

    def test_offline_without_the_weights_or_the_configuration(self, repository: Path) -> None:
        with pytest.raises(
            WeightsError,
            match=r"open_clip_model\.safetensors or .* of https://\S*/someone/prime .*hf download",
        ) as caught:
            load_clip("hf-hub:someone/prime")
        assert "\n" not in str(caught.value)
        (repository / hub.CONFIG).write_text("{}")
        with pytest.raises(WeightsError, match=r"its open_clip_config\.json is not open_clip's"):
            load_clip("hf-hub:someone/prime")
        (repository / hub.CONFIG).unlink()
        with pytest.raises(
            WeightsError,
            match=r"cannot download open_clip_config\.json .* you mean a folder: there is no someone/prime",
        ):
            load_clip("hf-hub:someone/prime")
