"""Every architecture of open_clip that is accepted computes what open_clip computes, in a small version."""

import json
import re

import open_clip
import pytest
import torch

from dear.backbone.loading.convert import explain_misfit, to_towers
from dear.backbone.loading.open_clip_format import build
from dear.errors import WeightsError
from tests.helpers.errors import refuses
from tests.unit.backbone.shrunk import ids, pixels, shrunk, shrunk_config

REFUSED = ("coca_roberta", "mt5-", "nllb-", "roberta-", "xlm-roberta-")
FEATURES_ONLY = (
    "coca_", "convnext_", "swin_", "vit_relpos_", "RN", "MobileCLIP-S", "MobileCLIP2-S",
)  # fmt: skip
NAMES = [name for name in open_clip.list_models() if not name.startswith((*REFUSED, *FEATURES_ONLY))]


def describe_kind(name: str) -> str:
    """What the small versions of an architecture's sizes have in common."""
    config = shrunk_config(name)
    vision = {key: value for key, value in config["vision_cfg"].items() if not key.endswith("_size")}
    return re.sub(r"(patch)?\d+", "", json.dumps(config | {"vision_cfg": vision}, sort_keys=True))


FIRST_OF_A_KIND = {*{describe_kind(name): name for name in reversed(NAMES)}.values()}


def test_at_least_a_hundred_names_are_accepted() -> None:
    assert len(NAMES) == 102
    assert len([name for name in open_clip.list_models() if not name.startswith(REFUSED)]) == 134
    assert len(open_clip.list_models()) == 144


@pytest.mark.parametrize(
    "name", [n if n in FIRST_OF_A_KIND else pytest.param(n, marks=pytest.mark.long) for n in NAMES]
)
def test_features_are_those_of_open_clip(name: str) -> None:
    network = shrunk(name)
    assert explain_misfit(network) is None
    image, text = to_towers(network)
    with torch.no_grad():
        of = pixels(network), ids(network)
        pairs = [(image(of[0]), network.encode_image(of[0])), (text(of[1]), network.encode_text(of[1]))]
        # wherever the towers are split
        first = torch.zeros(1, dtype=torch.long)
        split = image.span(image.trunk(of[0], 2), 2, read=first)[:, 0]
        pairs += [(image.finish(split), pairs[0][1]), (text.features(text.trunk(of[1], 2), 2), pairs[1][1])]
        for ours, theirs in pairs:
            assert float((ours - theirs).abs().max() / theirs.abs().max()) < 1e-5


@pytest.mark.parametrize("name", [n for n in open_clip.list_models() if n.startswith(REFUSED)])
def test_the_others_are_refused(name: str) -> None:
    refuses(WeightsError, "its text tower is a Hugging Face model", build, name)


OPAQUE = [n for n in open_clip.list_models() if n.startswith(FEATURES_ONLY) and not n.startswith(REFUSED)]


@pytest.mark.parametrize(
    "name", [n if n == "RN50" else pytest.param(n, marks=pytest.mark.long) for n in OPAQUE]
)
def test_those_that_give_features_only(name: str) -> None:
    with torch.device("meta"):
        network = build(name)
        image, text = to_towers(network)
    assert "features" in (image.access, text.access)


def test_the_image_size_is_the_one_that_the_tower_takes() -> None:
    """open_clip's configuration of this name says 256, at which its own tower fails."""
    with torch.device("meta"):
        image, _ = to_towers(build("ViTamin-XL-384"))
    assert (image.image_size, image.side) == (384, 24)
