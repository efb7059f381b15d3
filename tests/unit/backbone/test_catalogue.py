"""Architectures tried without memory for their weights, and small ones against open_clip."""

import pytest
import torch

from dear.backbone.catalogue import difference, markdown, names_of_open_clip, try_architecture
from dear.backbone.choice import Verdict


def test_one_that_fits() -> None:
    verdict = try_architecture("ViT-L-14-336")
    assert verdict == Verdict(
        "ViT-L-14-336", True, None, verdict.parameters, layers=24, heads=16, image_size=336, difference=None
    )
    assert verdict.parameters == pytest.approx(427.9, abs=0.1)  # published for OpenAI's ViT-L/14@336px: 428 M


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("RN50", "its image tower is a ModifiedResNet, not a ViT"),
        ("convnext_base", "its image tower is timm's ConvNeXt, not a plain ViT"),
        ("coca_ViT-B-32", "its class CoCa is neither open_clip's CLIP nor its CustomTextCLIP"),
        ("roberta-ViT-B-32", "its text tower is a Hugging Face model, not open_clip's own"),
    ],
)
def test_those_that_do_not(name: str, reason: str) -> None:
    assert try_architecture(name) == Verdict(name, False, reason)


@pytest.mark.long
def test_a_small_one_equals_open_clip() -> None:
    before = torch.get_rng_state()
    assert difference("ViT-S-32-alt") < 1e-5
    assert torch.equal(torch.get_rng_state(), before)


def test_all_names() -> None:
    assert {"ViT-B-16", "RN50", "ViT-H-14-quickgelu"} < {*names_of_open_clip()}


def test_the_page() -> None:
    page = markdown([Verdict("a", True, None, 7.0, 3, 5, 11, 1e-7), Verdict("b", False, "why")], "9", 60)
    assert "**1 of 2 work, 1 are refused**" in page
    assert "| a | 3 x 5, 11 | 7.0 | 1.0e-07 |" in page
    assert "| b | why |" in page
    assert "--compare-below 60 --write" in page
