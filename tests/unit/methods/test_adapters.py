"""The methods that leave both towers alone and work on features: what their equations say, by hand."""

from typing import Any

import pytest
import torch
from torch.nn.functional import normalize

from dear.backbone.clip import Clip
from dear.errors import SettingsError
from dear.methods.base import Method
from dear.methods.registry import METHODS, build_method

CLASSES = ["red circle on the sea", "house", "green tree"]
TEMPLATE = ["a photo of a {}"]


def build(name: str, clip: Clip, **options: Any) -> Method:
    method = build_method(
        name, clip, torch.Generator().manual_seed(1), settings=METHODS[name].settings(**options)
    )
    method.set_classes(CLASSES, TEMPLATE)
    return method


class TestClipAdapter:
    @pytest.mark.parametrize("ratio", [0.0, 0.3, 1.0])
    @torch.no_grad()
    def test_the_mix_is_of_features_before_they_are_normalised(self, ratio: float, small_clip: Clip) -> None:
        method = build("clip-adapter", small_clip, ratio=ratio)
        trunk = method.image_trunk(torch.rand(2, 3, 20, 20))
        own = small_clip.image.finish(trunk[:, 0])
        # A bottleneck of 4 (17 / 4), of which the first two read one number each, and the last is dead.
        method.get_parameter("down").zero_()[[0, 1, 3], [0, 1, 2]] = torch.tensor([2.0, -1.0, 0.0])
        method.get_parameter("up").zero_()[[5, 6], [0, 1]] = torch.tensor([3.0, 4.0])
        adapted = torch.zeros(2, 17)
        adapted[:, 5] = 3 * (2 * own[:, 0]).clamp(min=0)
        adapted[:, 6] = 4 * (-own[:, 1]).clamp(min=0)
        want = normalize(ratio * adapted + (1 - ratio) * own, dim=-1)
        torch.testing.assert_close(method.image_features(trunk)[0], want)

    def test_a_wide_reduction_leaves_one(self, small_clip: Clip) -> None:
        assert build("clip-adapter", small_clip, reduction=99).get_parameter("down").shape == (1, 17)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("clip-adapter", {"ratio": 1.5}, "clip_adapter.ratio is 1.5: it must be from 0 to 1"),
        ("clip-adapter", {"reduction": 0}, "clip_adapter.reduction is 0: it must be at least 1"),
    ],
)
def test_settings_out_of_bounds(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        METHODS[name].settings(**options)
