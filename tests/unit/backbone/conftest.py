"""The small architecture of ``prime``, its tensors and a file of them."""

from pathlib import Path

import pytest
import torch
from open_clip.factory import _MODEL_CONFIGS
from open_clip.pretrained import _PRETRAINED
from torch import Tensor

from dear.backbone.loading.open_clip_format import build_random
from tests.unit.backbone.prime import CONFIG, NAME, TAGS


@pytest.fixture
def prime_architecture(monkeypatch: pytest.MonkeyPatch) -> str:
    """Register the architecture and its tags with open_clip for one test; returns its name."""
    monkeypatch.setitem(_MODEL_CONFIGS, NAME, CONFIG)
    monkeypatch.setitem(_PRETRAINED, NAME, TAGS)
    return NAME


@pytest.fixture
def state(prime_architecture: str) -> dict[str, Tensor]:
    network = build_random(prime_architecture, 3)
    return {name: tensor.clone() for name, tensor in network.state_dict().items()}


@pytest.fixture
def weights(tmp_path: Path, state: dict[str, Tensor]) -> Path:
    path = tmp_path / "prime.pt"
    torch.save(state, path)
    return path
