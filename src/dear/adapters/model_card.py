"""The model card of an adapter bundle."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dear.backbone.choice import CARD as CARD_OF_TINY
from dear.backbone.choice import TINY

if TYPE_CHECKING:
    from dear.adapters.bundle import Bundle

SHOWN = 20

CARD = """\
---
library_name: dear-vlm
pipeline_tag: image-classification
tags:
- clip
- {method}
---
# {name}

An adapter for a CLIP: {method} on `{backbone}`, for {count} classes. The backbone is not in this folder;
it is loaded by name and its tensors are checked against those used in training.
{caution}
```python
import dear

predictor = dear.Predictor(dear.Bundle.from_pretrained("{name}"))
print(predictor.predict(["image.jpg"])[0].best)
```

```sh
dear predict {name} image.jpg
```

| fact | value |
| --- | --- |
{facts}

Classes: {classes}

Measured{where}:

| metric | value |
| --- | --- |
{metrics}

Accuracies are fractions. Probabilities are softmax(logits / {temperature:g}){calibrated}.
"""


def model_card(bundle: "Bundle", name: str) -> str:
    """The card in Markdown, with YAML front matter as the hub reads it."""
    training = bundle.training
    roles = bundle.roles
    rest = len(bundle.classes) - SHOWN
    facts = {
        "backbone": f"`{bundle.weights.model}`, weights `{bundle.weights.pretrained}`",
        "sha256 of the backbone's tensors": f"`{bundle.weights.sha256}`",
        "trained parameters": f"{bundle.parameters:,}",
        "settings": ", ".join(f"{key} {value}" for key, value in vars(bundle.settings).items()) or "none",
        "role table": "none"
        if roles is None
        else f"{roles.source}; attributes {', '.join(roles.attributes)}",
        "templates": " · ".join(f"`{template}`" for template in bundle.templates),
        **{
            key.replace("_", " "): value
            for key, value in training.items()
            if not isinstance(value, Mapping | list)
        },
    }
    return CARD.format(
        name=name,
        method=bundle.method,
        backbone=bundle.weights.model,
        count=len(bundle.classes),
        caution=f"\n> {CARD_OF_TINY}\n" if bundle.model == TINY else "",
        facts=_rows(facts),
        classes=", ".join(bundle.classes[:SHOWN]) + (f" ... and {rest} more" if rest > 0 else ""),
        where=f" on {training['test_images']} test images of {training['data']}"
        if "test_images" in training
        else "",
        metrics=_rows(bundle.metrics) or "| none | |",
        temperature=bundle.temperature,
        calibrated="" if bundle.temperature == 1 else ", a temperature set on validation images",
    )


def _rows(values: Mapping[str, Any]) -> str:
    plain = {key: value for key, value in values.items() if not isinstance(value, Mapping)}
    return "\n".join(
        f"| {key.replace('_', ' ')} | {f'{value:.4g}' if isinstance(value, float) else value} |"
        for key, value in plain.items()
    )
