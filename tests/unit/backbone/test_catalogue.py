"""Architectures tried without memory for their weights, and the page about them."""

import pytest

from dear.backbone.names import Access
from tools.generate_docs import try_architecture


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
