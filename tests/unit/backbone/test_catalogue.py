"""Architectures tried without memory for their weights, and the page about them."""

import pytest

from dear.backbone.catalogue import Verdict, try_architecture
from dear.backbone.choice import Access
from tools.models import render_page


@pytest.mark.parametrize(
    ("name", "image", "text", "kind"),
    [
        ("ViT-L-14-336", "heads", "layers", None),
        ("RN50", "features", "layers", "ModifiedResNet"),
        ("convnext_base", "features", "layers", "timm's ConvNeXt"),
        ("coca_ViT-B-32", "features", "features", "CoCa's VisionTransformer"),
    ],
)
def test_what_an_architecture_gives(name: str, image: Access, text: Access, kind: str | None) -> None:
    verdict = try_architecture(name)
    assert (verdict.works, verdict.image, verdict.text, verdict.kind) == (True, image, text, kind)
    has_heads = name == "ViT-L-14-336"
    assert (verdict.layers, verdict.heads) == ((24, 16) if has_heads else (None, None))
    assert verdict.image_size == (336 if has_heads else 224)
    if has_heads:
        assert verdict.parameters == pytest.approx(427.9, abs=0.1)  # published for OpenAI's: 428 M


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
    rows = [
        "| a | 3 x 5, 11 | 7.0 |",
        "Methods: of-features, of-layers.",
        "| c | Net, 13 | 2.0 |",
        "| b | why |",
    ]
    assert [page.count(row) for row in rows] == [1] * 4
    assert sorted(rows, key=page.index) == rows
