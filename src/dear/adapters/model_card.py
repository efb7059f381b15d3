"""The model card of an adapter bundle. Names come from data, so they appear literally: no markup, no links,
no characters that turn the direction of text.
"""

import json
import shlex
from collections.abc import Mapping
from pathlib import PureWindowsPath
from typing import Any

from dear.backbone.choice import CARD as CARD_OF_TINY
from dear.backbone.choice import TINY, may_be_folder
from dear.errors import printable

LISTED_CLASSES = 20
METRICS = {"gained": "right, but wrong zero-shot (images)", "lost": "wrong, but right zero-shot (images)"}
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
dear predict {argument} image.jpg
```

| fact | value |
| --- | --- |
{facts}

Classes: {classes}

{measured}

Probabilities are softmax(logits / {temperature:g}){calibrated}.
"""


def model_card(config: Mapping[str, Any], parameters: int, title: str) -> str:
    """The card of a bundle with this ``config.json`` and number of trained parameters."""
    training, roles, backbone = config["training"], config["roles"], config["backbone"]
    weights, classes = backbone["weights"], config["classes"]
    unlisted = len(classes) - LISTED_CLASSES
    settings = ", ".join(f"{name} {value}" for name, value in config["settings"].items())
    of_training = {
        key: value
        for key, value in training.items()
        if not isinstance(value, list) and value is not None and (key, value) != ("seconds", 0)
    }
    facts = {
        "backbone": f"{_code(without_folders(weights['model']))}, weights {_code(weights['pretrained'])}",
        "sha256 of the backbone's tensors": _code(weights["sha256"]),
        "trained parameters": f"{parameters:,}",
        "settings": _literal(settings) or "none",
        "role table": "none"
        if roles is None
        else _literal(f"{roles['source']}; attributes {', '.join(roles['attributes'])}"),
        "templates": " · ".join(map(_code, config["templates"])),
    }
    facts |= {name: value for name, value in _named(of_training).items() if name not in facts}
    return CARD.format(
        title=_literal(title),
        quoted=json.dumps(_printed(title), ensure_ascii=False),
        argument=shlex.quote(_printed(title)),
        method=_printed(config["method"]),
        backbone=_code(without_folders(weights["model"])),
        count=len(classes),
        caution=f"\n> {CARD_OF_TINY}\n" if backbone["model"] == TINY else "",
        facts=_rows(facts),
        classes=", ".join(map(_literal, classes[:LISTED_CLASSES]))
        + (f" ... and {unlisted} more" if unlisted > 0 else ""),
        measured=_measured(config),
        temperature=config["temperature"],
        calibrated="" if config["temperature"] == 1 else ", set on images that it was not trained on",
    )


def without_folders(model: str) -> str:
    """A backbone's name; of a folder its own name, without the path to it on this machine."""
    if not may_be_folder(model):
        return model
    name = PureWindowsPath(model).name.strip(".") or "folder"  # takes both separators
    return name if may_be_folder(name) else f"./{name}"  # no architecture


def _measured(config: Mapping[str, Any]) -> str:
    """The metrics as a table, or that there are none."""
    training, metrics = config["training"], dict(config["metrics"])
    if not metrics:
        return "Not tested."
    if isinstance(pairs := metrics.get("confusions"), list):
        metrics["confusions"] = ", ".join(map(_confusion, pairs)) or "none"
    where = f" on {_literal(str(training['test_images']))} test images" if "test_images" in training else ""
    where += f" of {_literal(str(training['data']))}" if "data" in training else ""
    rows = _rows(_named({str(METRICS.get(name, name)): value for name, value in metrics.items()}))
    return f"Measured{where}:\n\n| metric | value |\n| --- | --- |\n{rows}\n\nAccuracies are fractions."


def _confusion(pair: Any) -> str:
    """A confusion in words; a bundle of a stranger may hold anything."""
    return "{} as {} ({})".format(*pair) if isinstance(pair, list) and len(pair) == 3 else str(pair)


def _rows(values: Mapping[str, Any]) -> str:
    return "\n".join(
        f"| {key} | {f'{value:.4g}' if isinstance(value, float) else value} |"
        for key, value in values.items()
    )


def _named(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values that are no mappings, by their keys in words; Markdown shows all but numbers literally."""
    return {
        _literal(key.replace("_", " ")): value if isinstance(value, int | float) else _literal(str(value))
        for key, value in values.items()
        if not isinstance(value, Mapping)
    }


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
