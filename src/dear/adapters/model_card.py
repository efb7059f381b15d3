"""The model card of an adapter bundle. Names come from data, so they appear literally: no markup, no links,
no characters that turn the direction of text.
"""

import json
import shlex
from collections.abc import Mapping
from pathlib import PureWindowsPath
from typing import TYPE_CHECKING

import huggingface_hub  # loads its parts when they are used

from dear.adapters.bundle_config import LIBRARY
from dear.adapters.results import shown_metrics
from dear.backbone.choice import CARD as CARD_OF_TINY
from dear.backbone.choice import TINY, may_be_folder
from dear.errors import listing, printable

if TYPE_CHECKING:
    from dear.adapters.bundle import Bundle

LISTED_CLASSES = 20
SIGNS = {ord(sign): f"\\{sign}" for sign in "\\`*_[]|~#:@!&$"} | {ord("<"): "&lt;", ord(">"): "&gt;"}
MARKS = {code: f"\\u{code:04x}" for code in (0x061C, 0x200E, 0x200F, 0xFEFF)}
"""Marks of direction that a terminal ignores, but a web page does not."""

CARD = """\
---
{front_matter}
---
# {title}

An adapter for a CLIP: {method} on {backbone}, for {count} classes. The backbone is not in this folder;
it is loaded by name and its tensors are checked against those used in training.
{caution}
```python
import dear

predictor = dear.Predictor({quoted})
print(predictor.predict(["image.jpg"])[0].best)
```

```sh
dear predict {argument} image.jpg
```

| fact | value |
| --- | --- |
{facts}

Classes: {classes}

{measured}

Probabilities are softmax(logits / {temperature:g}){calibrated}.
"""


def model_card(bundle: "Bundle", title: str) -> str:
    """The card in Markdown, with YAML front matter as the hub reads it."""
    roles, weights, backbone = bundle.roles, bundle.weights, _code(without_folders(bundle.weights.model))
    of_training = {
        _literal(key.replace("_", " ")): _literal(f"{value:.4g}" if isinstance(value, float) else str(value))
        for key, value in bundle.training.items()
        if value is not None and not isinstance(value, list | Mapping)
    }
    facts = of_training | {
        "backbone": f"{backbone}, weights {_code(weights.pretrained)}",
        "sha256 of the backbone's tensors": _code(weights.sha256),
        "trained parameters": f"{bundle.parameters:,}",
        "settings": _literal(listing([f"{name} {value}" for name, value in vars(bundle.settings).items()])),
        "role table": _literal(
            f"{roles.source}; attributes {listing(roles.attributes)}" if roles else "none"
        ),
        "templates": " · ".join(map(_code, bundle.templates)),
    }
    findings = [_literal(line) for line in bundle.findings]
    metrics = shown_metrics(bundle.metrics, 2)
    measured = [
        f"Tested on {_literal(str(bundle.training.get('data')))}:",
        "",
        *findings,
        "",
        _table(metrics),
    ]
    return CARD.format(
        front_matter=huggingface_hub.ModelCardData(
            library_name=LIBRARY, pipeline_tag="image-classification", tags=["clip", bundle.method]
        ).to_yaml(),
        title=_literal(title),
        quoted=json.dumps(_printed(title), ensure_ascii=False),
        argument=shlex.quote(_printed(title)),
        method=_printed(bundle.method),
        backbone=backbone,
        count=len(bundle.classes),
        caution=f"\n> {CARD_OF_TINY}\n" if bundle.model == TINY else "",
        facts="\n".join(f"| {key} | {value} |" for key, value in facts.items()),
        classes=listing([*map(_literal, bundle.classes)], LISTED_CLASSES),
        measured="\n".join(measured) if metrics else "Not tested.",
        temperature=bundle.temperature,
        calibrated="" if bundle.temperature == 1 else ", set on images that it was not trained on",
    )


def without_folders(model: str) -> str:
    """A backbone's name; of a folder its own name, without the path to it on this machine."""
    if not may_be_folder(model):
        return model
    name = PureWindowsPath(model).name.strip(".") or "folder"  # takes both separators
    return name if may_be_folder(name) else f"./{name}"  # no architecture


def _table(values: Mapping[str, str]) -> str:
    rows = [f"| {name} | {value} |" for name, value in values.items()]
    return "\n".join(["| metric | value |", "| --- | --- |", *rows])


def _printed(text: str) -> str:
    """Text on one line, with control characters and marks of direction escaped."""
    return printable(text).translate(MARKS)


def _literal(text: str) -> str:
    """Text that Markdown shows as it is."""
    return _printed(text).translate(SIGNS).replace("www.", "www\\.")


def _code(text: object) -> str:
    """Text as code on one line, in a table too."""
    line = _printed(str(text))
    return _literal(line) if "`" in line else f"`{line.replace('|', chr(92) + '|')}`"
