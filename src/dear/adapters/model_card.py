"""The model card of an adapter bundle. Names come from data, so they are shown literally: no markup, no
links, no characters that turn the direction of text.
"""

import json
import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dear.backbone.choice import CARD as CARD_OF_TINY
from dear.backbone.choice import TINY
from dear.errors import printable

if TYPE_CHECKING:
    from dear.adapters.bundle import Bundle

SHOWN = 20
SIGNS = {ord(sign): f"\\{sign}" for sign in "\\`*_[]|~#:@!&$"} | {ord("<"): "&lt;", ord(">"): "&gt;"}
MARKS = {code: f"\\u{code:04x}" for code in (0x061C, 0x200E, 0x200F, 0xFEFF)}
"""Marks of direction that a terminal ignores, but a web page does not."""

CARD = """\
---
library_name: dear-vlm
pipeline_tag: image-classification
tags:
- clip
- {method}
---
# {title}

An adapter for a CLIP: {method} on {backbone}, for {count} classes. The backbone is not in this folder;
it is loaded by name and its tensors are checked against those used in training.
{caution}
```python
import dear

predictor = dear.Predictor(dear.Bundle.from_pretrained({quoted}))
print(predictor.predict(["image.jpg"])[0].best)
```

```sh
dear predict {word} image.jpg
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
        "backbone": f"{_code(bundle.weights.model)}, weights {_code(bundle.weights.pretrained)}",
        "sha256 of the backbone's tensors": f"`{bundle.weights.sha256}`",
        "trained parameters": f"{bundle.parameters:,}",
        "settings": _literal(", ".join(f"{key} {value}" for key, value in vars(bundle.settings).items()))
        or "none",
        "role table": "none"
        if roles is None
        else _literal(f"{roles.source}; attributes {', '.join(roles.attributes)}"),
        "templates": " · ".join(map(_code, bundle.templates)),
        **{
            _named(key): _value(value)
            for key, value in training.items()
            if not isinstance(value, Mapping | list)
        },
    }
    return CARD.format(
        title=_literal(name),
        quoted=json.dumps(_printed(name), ensure_ascii=False),
        word=shlex.quote(_printed(name)),
        method=_printed(bundle.method),
        backbone=_code(bundle.weights.model),
        count=len(bundle.classes),
        caution=f"\n> {CARD_OF_TINY}\n" if bundle.model == TINY else "",
        facts=_rows(facts),
        classes=", ".join(map(_literal, bundle.classes[:SHOWN]))
        + (f" ... and {rest} more" if rest > 0 else ""),
        where=f" on {training['test_images']} test images of {_literal(str(training['data']))}"
        if "test_images" in training
        else "",
        metrics=_rows({_named(key): _value(value) for key, value in bundle.metrics.items()}) or "| none | |",
        temperature=bundle.temperature,
        calibrated="" if bundle.temperature == 1 else ", a temperature set on validation images",
    )


def _rows(values: Mapping[str, Any]) -> str:
    plain = {key: value for key, value in values.items() if not isinstance(value, Mapping)}
    return "\n".join(
        f"| {key} | {f'{value:.4g}' if isinstance(value, float) else value} |" for key, value in plain.items()
    )


def _printed(text: str) -> str:
    """Text on one line, with control characters and marks of direction escaped."""
    return printable(text).translate(MARKS)


def _named(key: str) -> str:
    return _literal(key.replace("_", " "))


def _value(value: Any) -> Any:
    return _literal(value) if isinstance(value, str) else value


def _literal(text: str) -> str:
    """Text that Markdown shows as it is."""
    return _printed(text).translate(SIGNS).replace("www.", "www\\.")


def _code(text: object) -> str:
    """Text as code of one line, also in a table."""
    line = _printed(str(text))
    return _literal(line) if "`" in line else f"`{line.replace('|', chr(92) + '|')}`"
