"""What a discovery refuses before it reads an image."""

from typing import Any

import pytest
import torch

from dear.backbone.clip import Clip
from dear.errors import SettingsError
from dear.roles.discover import discover
from dear.roles.phrases import world_pool
from dear.roles.settings import RoleSettings
from tests.unit.training.world import Noise


class Unread(Noise):
    """Images that must not be loaded."""

    def load(self, indices: torch.Tensor) -> torch.Tensor:
        raise AssertionError(f"{len(indices)} images were read")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"top": 0}, "0 phrases per head: give --phrases-a-head at least 1"),
        ({"settings": RoleSettings(attributes=("colour",))}, "there is no concept 'colour'"),
    ],
)
def test_no_image_is_read_for_what_is_refused(
    options: dict[str, Any], message: str, small_clip: Clip
) -> None:
    with pytest.raises(SettingsError, match=message):
        discover(small_clip, Unread([0] * 8), world_pool(), rank=2, **options)
