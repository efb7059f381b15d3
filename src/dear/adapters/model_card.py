"""The model card of an adapter bundle. Names come from data, so they appear literally: no markup, no links,
no characters that turn the direction of text.
"""

import json
import shlex
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import PureWindowsPath
from typing import TYPE_CHECKING

from jinja2 import Environment, PackageLoader

from dear.adapters.results import shown_metrics
from dear.backbone.choice import CARD as CARD_OF_TINY
from dear.backbone.choice import TINY, may_be_folder
from dear.errors import printable

if TYPE_CHECKING:
    from dear.adapters.bundle import Bundle

SIGNS = {ord(sign): f"\\{sign}" for sign in "\\`*_[]|~#:@!&$"} | {ord("<"): "&lt;", ord(">"): "&gt;"}
MARKS = {code: f"\\u{code:04x}" for code in (0x061C, 0x200E, 0x200F, 0xFEFF)}
"""Marks of direction that a terminal ignores, but a web page does not."""
RESERVED = {"backbone", "sha256 of the backbone's tensors", "trained parameters", "settings", "role table"}
"""Facts of the card itself, in whose place no fact of the training stands."""


def model_card(bundle: "Bundle", title: str) -> str:
    """The card in Markdown, with YAML front matter as the hub reads it."""
    loader = PackageLoader("dear.adapters", "")
    environment = Environment(loader=loader, trim_blocks=True, keep_trailing_newline=True)
    environment.filters |= {"literal": _literal, "code": _code}
    environment.filters["quoted"] = lambda text: json.dumps(_printed(text), ensure_ascii=False)
    environment.filters["argument"] = lambda text: shlex.quote(_printed(text))
    facts = {key.replace("_", " "): value for key, value in bundle.training.items() if value is not None}
    training = {
        key: f"{value:.4g}" if isinstance(value, float) else value
        for key, value in facts.items()
        if not isinstance(value, list | Mapping) and key not in RESERVED
    }
    return environment.get_template("model_card.md.j2").render(
        bundle=bundle,
        title=title,
        backbone=without_folders(bundle.weights.model),
        settings=asdict(bundle.settings),
        training=training,
        metrics=shown_metrics(bundle.metrics, 2),
        caution=CARD_OF_TINY if bundle.model == TINY else "",
    )


def without_folders(model: str) -> str:
    """A backbone's name; of a folder its own name, without the path to it on this machine."""
    if not may_be_folder(model):
        return model
    name = PureWindowsPath(model).name.strip(".") or "folder"  # takes both separators
    return name if may_be_folder(name) else f"./{name}"  # no architecture


def _printed(text: object) -> str:
    """Text on one line, with control characters and marks of direction escaped."""
    return printable(str(text)).translate(MARKS)


def _literal(text: object) -> str:
    """Text that Markdown shows as it is."""
    return _printed(text).translate(SIGNS).replace("www.", "www\\.")


def _code(text: object) -> str:
    """Text as code on one line, in a table too."""
    line = _printed(text)
    return _literal(line) if "`" in line else f"`{line.replace('|', chr(92) + '|')}`"
