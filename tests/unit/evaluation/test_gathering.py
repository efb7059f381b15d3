"""Which heads build the class token: the sets that are ablated, and the numbers beside each other."""

import pytest
import torch

from dear.backbone.clip import Clip
from dear.data.dataset import Dataset
from dear.roles.ablation import mean_ablation
from tests.unit.training.world import Noise
from tools import gathering as module
from tools.gathering import Gathering, gathering


def test_late_and_early_heads_are_ablated_apart(small_clip: Clip, monkeypatch: pytest.MonkeyPatch) -> None:
    images = Noise([i % 3 for i in range(41)])
    names = ("red circle", "house", "green tree")
    noise = Dataset("noise", "Noise", names, ("a photo of a {}",), images, images, images, "noise")
    monkeypatch.setattr(module, "load_dataset", lambda _: noise)
    told: list[str] = []
    (found,) = gathering(small_clip, ["noise"], progress=told.append)
    late = [(layer, head) for layer in (4, 5) for head in range(3)]  # 4 of 12 layers, rounded: 2 of 5
    early = [(layer, head) for layer in (1, 2, 3) for head in range(3)]
    text = small_clip.class_features(names, ["a photo of a {}"])
    want = mean_ablation(small_clip, images, text, {"late": late, "early": early})
    assert found == Gathering("noise", 1 / 3, want.whole, want.ablated["late"], want.ablated["early"])
    assert told == ["noise"]
    assert torch.tensor([found.whole, found.without_late, found.without_early]).unique().numel() > 1
