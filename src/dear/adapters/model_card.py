"""The model card of a bundle. Names in it come from data, so they appear literally: no markup, no links, no
characters that turn the direction of text.
"""

import json
import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dear.adapters.bundle_config import LIBRARY, without_folders
from dear.adapters.operating_words import describe_decided, describe_point
from dear.adapters.wording import describe_doubt, describe_test, list_facts, list_metrics, verdict
from dear.backbone.names import CARD as CARD_OF_TINY
from dear.backbone.names import TINY
from dear.curation.outliers import describe_refusal
from dear.text import printable

MARKDOWN = {ord(sign): f"\\{sign}" for sign in "\\`*_[]|~#:@!&$"} | {ord("<"): "&lt;", ord(">"): "&gt;"}
MARKS = {code: f"\\u{code:04x}" for code in (0x061C, 0x200E, 0x200F, 0xFEFF)}
"""Marks of direction that a terminal ignores, but a web page does not."""


def model_card(bundle: Any, title: str) -> str:
    """The card of a `Bundle` in Markdown, with YAML front matter as the hub reads it."""
    from huggingface_hub import ModelCard, ModelCardData

    scores, facts = bundle.scores, bundle.training
    doubt = describe_doubt(scores, facts) if scores else []
    card = ModelCard.from_template(
        ModelCardData(
            library_name=LIBRARY, pipeline_tag="image-classification", tags=["clip", bundle.method]
        ),
        template_str=Path(__file__).with_name("model_card.md.j2").read_text(encoding="utf-8"),
        bundle=bundle,
        title=title,
        backbone=without_folders(bundle.weights.model),
        settings=asdict(bundle.settings),
        facts=list_facts(facts),
        metrics={} if scores is None else list_metrics(scores, 2),
        findings=[*verdict(scores), *doubt] if scores else describe_test(None, facts),
        operating=[
            *describe_point(facts.operating),
            *describe_decided(facts.operating, scores.decided if scores else None),
        ],
        refusal=describe_refusal(bundle.known, bundle.refuse),
        caution=CARD_OF_TINY if bundle.model == TINY else "",
        literal=_literal,
        code=_code,
        quoted=lambda text: json.dumps(_printed(text), ensure_ascii=False),
        argument=lambda text: shlex.quote(_printed(text)),
    )
    return f"{card}\n"


def _printed(text: object) -> str:
    """Text on one line, with control characters and marks of direction escaped."""
    return printable(str(text)).translate(MARKS)


def _literal(text: object) -> str:
    """Text that Markdown shows as it is."""
    return _printed(text).translate(MARKDOWN).replace("www.", "www\\.")


def _code(text: object) -> str:
    """Text as code on one line, in a table too."""
    line = _printed(text)
    return _literal(line) if "`" in line else f"`{line.replace('|', chr(92) + '|')}`"
