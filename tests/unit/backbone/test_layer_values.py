"""What the layers of an image tower give for a picture, counted without memory."""

from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from dear.backbone.load import load_clip
from dear.backbone.whole import PICTURES, _FusedAttention, _Operators, values_of_layer
from dear.errors import WeightsError
from tests.unit.backbone.test_strangers_model import stranger

SIDE, HEADS, WIDTH = 11, 2, 3
TOKENS = SIDE**2


class Attention(nn.Module):
    """A tower whose only token mixer is attention, in one of the forms that towers have."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.form, self.image_size = form, SIDE
        self.inner = nn.Conv2d(3, HEADS * WIDTH, 1)
        self.module = nn.MultiheadAttention(HEADS * WIDTH, HEADS, batch_first=True)
        self.table = nn.Parameter(torch.zeros(999, 999))

    def forward(self, pixels: Tensor) -> Tensor:
        tokens = self.inner(pixels).flatten(2).transpose(1, 2)
        if self.form == "module":
            output: Tensor = self.module(tokens, tokens, tokens, need_weights=False)[0]
            return output
        heads = tokens.unflatten(2, (HEADS, WIDTH)).transpose(1, 2)
        heads = heads if self.form == "in steps" else heads.contiguous()
        if self.form == "written out":
            return (heads @ heads.transpose(2, 3)).softmax(dim=-1) @ heads
        return scaled_dot_product_attention(heads + self.table.exp().sum(), heads, heads)


@pytest.mark.parametrize(
    ("form", "layered", "values"),
    [
        ("written out", False, HEADS * TOKENS**2),
        ("in steps", False, HEADS * TOKENS**2),  # the numbers of a query do not lie beside each other
        ("fused", False, HEADS * WIDTH * TOKENS),  # and not 999 x 999, which are of the weights alone
        ("module", False, HEADS * TOKENS**2),
        ("module", True, HEADS * WIDTH * TOKENS),
    ],
)
def test_what_is_computed_inside_a_module_counts(form: str, layered: bool, values: int) -> None:
    """Only what modules return was counted: a model of 52 MB took 11.8 GB."""
    assert values_of_layer(Attention(form), layered=layered) == values


@pytest.mark.parametrize(
    ("width", "mask"),
    [
        (3, None),
        (5, None),  # of values, of which torch has no fused form
        (3, (7, 7)),
        (3, (1, 2, 7, 7)),
        (3, (PICTURES, 1, 7, 7)),
        (3, (2, 7, 7)),  # likewise
        (-3, None),  # turned, so that its numbers do not lie beside each other: likewise
    ],
)
def test_attention_is_without_its_matrix_where_a_cpu_computes_it_so(
    width: int, mask: tuple[int, ...] | None
) -> None:
    def largest(device: str) -> int:
        query, value = (torch.zeros(PICTURES, 2, 7, size, device=device) for size in (3, abs(width)))
        if width < 0:
            query = torch.zeros(PICTURES, 2, 3, 7, device=device).transpose(2, 3)
        attn_mask = None if mask is None else torch.zeros(mask, device=device)
        context = _FusedAttention(layered=False) if device == "meta" else nullcontext()
        with torch.no_grad(), _Operators() as operators, context:
            scaled_dot_product_attention(query, query, value, attn_mask=attn_mask)
        return operators.largest

    assert largest("meta") == largest("cpu")


@pytest.mark.parametrize("name", ["mvitv2_tiny", "levit_128s"])
def test_pictures_of_another_size_than_the_only_one(name: str, tmp_path: Path) -> None:
    """A tower whose position biases are too few failed at its first picture."""
    vision = {"timm_model_name": name, "timm_pool": "", "timm_proj": "linear", "image_size": 448}
    stranger(tmp_path / "model", {}, vision)
    with pytest.raises(WeightsError, match="it takes images of 224 x 224 pixels only, not of 448"):
        load_clip(str(tmp_path / "model"), "random:0")


def test_a_tower_without_heads(tmp_path: Path) -> None:
    """It was a traceback: a ResNet as wide as half a head."""
    vision = {"layers": [1, 1, 1, 1], "width": 8, "head_width": 4096, "image_size": 64}
    stranger(tmp_path / "model", {}, vision)
    with pytest.raises(WeightsError, match=r"cannot be computed \(.*zero"):
        load_clip(str(tmp_path / "model"), "random:0")


def test_towers_of_different_widths(tmp_path: Path) -> None:
    """It was a traceback at the first scores: timm's ViT-Ti gives 192 numbers without a projection."""
    vision = {
        "timm_model_name": "vit_tiny_patch16_224",
        "timm_pool": "avg",
        "timm_proj": "none",
        "image_size": 224,
    }
    stranger(tmp_path / "model", {}, vision)
    with pytest.raises(
        WeightsError, match=r"its image embeddings have 192 numbers, those of its texts \d+\."
    ):
        load_clip(str(tmp_path / "model"), "random:0")
