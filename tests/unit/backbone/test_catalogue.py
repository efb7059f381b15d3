"""Architectures tried without memory for their weights, and the page about them."""

import pytest

from dear.backbone.catalogue import Verdict, try_architecture
from dear.backbone.choice import Access
from tools.models import render_page


def test_one_that_fits() -> None:
    verdict = try_architecture("ViT-L-14-336")
    assert verdict == Verdict(
        "ViT-L-14-336", True, None, verdict.parameters, layers=24, heads=16, image_size=336,
        image="heads", text="layers",
    )  # fmt: skip
    assert verdict.parameters == pytest.approx(427.9, abs=0.1)  # published for OpenAI's ViT-L/14@336px: 428 M


@pytest.mark.parametrize(
    ("name", "kind", "text", "size"),
    [
        ("RN50", "ModifiedResNet", "layers", 224),
        ("convnext_base", "timm's ConvNeXt", "layers", 224),
        ("coca_ViT-B-32", "CoCa's VisionTransformer", "features", 224),
    ],
)
def test_those_with_features_of_images_alone(name: str, kind: str, text: Access, size: int) -> None:
    verdict = try_architecture(name)
    assert verdict == Verdict(
        name, True, None, verdict.parameters, image_size=size, image="features", text=text, kind=kind
    )


def test_one_that_does_not_fit() -> None:
    reason = "its text tower is a Hugging Face model, not open_clip's own"
    assert try_architecture("roberta-ViT-B-32") == Verdict("roberta-ViT-B-32", False, reason)


def test_the_page() -> None:
    verdicts = [
        Verdict("a", True, None, 7.0, 3, 5, 11, "heads", "layers"),
        Verdict("b", False, "why"),
        Verdict("c", True, None, 2.0, image_size=13, image="features", text="layers", kind="Net"),
    ]
    page = render_page(verdicts, "9", lambda image, text: [f"of-{image}", f"of-{text}"])
    assert "**2 of 3 work, 1 are refused**" in page
    assert "| a | 3 x 5, 11 | 7.0 |" in page
    assert "| b | why |" in page
    assert "Number of architectures: 1. Methods: of-features, of-layers." in page
    assert "| c | Net, 13 | 2.0 |" in page
    assert (
        page.index("| a |") < page.index("Methods: of-features") < page.index("| c |") < page.index("| b |")
    )
