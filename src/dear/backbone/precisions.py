"""Names of the number formats that a CLIP is computed in. Light to import."""

from typing import Literal

Precision = Literal["auto", "32-true", "bf16-mixed", "16-mixed", "16-true"]
"""As in Lightning Fabric: "-true" is the type of the weights, "-mixed" that of products by autocast."""
HALF: Precision = "16-true"
"""The precision with weights in float16: it needs the CLIP of `dear.backbone.half`."""
