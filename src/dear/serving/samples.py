"""What the documentation of the API says of a route beyond its parameters: its body, and a request with an
example of its answer.
"""

import json
from functools import cache
from pathlib import Path
from typing import Any

URL = "http://127.0.0.1:7860"
IMAGE = {"type": "string", "format": "binary"}
CLASSES = {"type": "string", "description": "comma-separated names"}


def of_route(name: str) -> dict[str, Any]:
    """The part of the OpenAPI schema of a route: the body, which the routes read themselves, piece by piece;
    a command that calls it, and what it may answer.
    """
    sample = samples()[name]
    answer = sample["answer"]
    kind = "text/plain" if isinstance(answer, str) else "application/json"
    return {
        **({} if name == "metrics" else {"requestBody": {"required": True, "content": _content(name)}}),
        "responses": {"200": {"description": "OK", "content": {kind: {"example": answer}}}},
        "x-codeSamples": [{"lang": "sh", "source": sample["curl"].replace("{url}", URL)}],
    }


@cache
def samples() -> dict[str, dict[str, Any]]:
    """By the route's name: the command (curl) and the answer."""
    content: dict[str, dict[str, Any]] = json.loads(
        Path(__file__).with_name("samples.json").read_text(encoding="utf-8")
    )
    return content


def _content(name: str) -> dict[str, Any]:
    several = name == "batch"
    image = {"type": "array", "items": IMAGE} if several else IMAGE
    fields = {"image": image, **({"classes": CLASSES} if name in ("predict", "batch") else {})}
    form = {"schema": {"type": "object", "required": ["image"], "properties": fields}}
    whole = {} if several else {"image/*": {"schema": IMAGE}}
    return {**whole, "multipart/form-data": form}
