"""Run records and companions made by hand for the tests of the report."""

import base64
from collections.abc import Sequence
from typing import Any

import numpy as np

from dear.evaluation.predictions import ImagePredictions
from dear.evaluation.records import SCHEMA
from dear.report.report_page import report_page

PIXEL = base64.b64encode(b"\x89PNG not decoded here").decode()
FEATURES = ("cls", "color", "shape")
CLASSES = ["<i>fish</i>", "car", "tree"]


def record(
    data: str, method: str, base: float, novel: float, *, seed: int = 1, variant: str | None = None,
    **changes: Any,
) -> dict[str, Any]:  # fmt: skip
    """A run record; accuracies are fractions."""
    trained = method != "zero-shot"
    made: dict[str, Any] = {
        "schema": SCHEMA,
        "key": f"{data} {method} {variant} {seed} {len(changes)}",
        "protocol": "base-to-novel",
        "method": method,
        "variant": variant,
        "settings": {"method": {"beta": 0.9} if trained else {}, "train": {}},
        "dataset": {"name": data, "title": data.title(), "identity": f"of {data}"}
        | {"classes": ["red fish", "blue car"]},
        "weights": {"model": "tiny", "pretrained": "world", "sha256": "ab" * 32},
        "roles": {"source": "ground-truth factors", "name": "tiny"} if trained else None,
        "seed": seed,
        "shots": 16,
        "train": {
            "epochs": [{"epoch": 1, "loss": 2.0}, {"epoch": 2, "loss": 1.5}] if trained else [],
            "seconds": 3.0,
        },
        "results": {
            "base": {"accuracy": base, "decoupled": None, "per_class": {}},
            "novel": {"accuracy": novel, "decoupled": None, "per_class": {}},
            "hm": 0.5,
        },
        "fusion_weights": {"cls": 0.7, "color": 0.2, "shape": 0.1} if trained else None,
        "trainable_parameters": 11 if trained else 0,
        "seconds": {"train": 3.0, "test": 1.0},
        "environment": {"python": "3.11", "code_version": "0123abc"},
    }
    return made | changes


def predictions(
    by_class: Sequence[Sequence[int]], confidence: Sequence[float] | float = 0.9, **changes: Any
) -> ImagePredictions:
    """Predictions of images that are in the order of their classes."""
    labels = np.repeat(range(len(by_class)), [len(predicted) for predicted in by_class])
    top = np.concatenate([np.array(predicted, dtype=int) for predicted in by_class])[:, None]
    logits = np.log(np.broadcast_to(np.array(confidence, dtype=float), len(labels)))[:, None]
    label_logits = np.where(labels == top[:, 0], logits[:, 0], np.log(0.01))
    facts: dict[str, Any] = {
        "classes": np.array(CLASSES), "labels": labels, "top": top, "logits": logits,
        "label_logits": label_logits, "log_sums": np.zeros(len(labels)), "indices": np.arange(len(labels)),
        "paths": np.array([], dtype=str), "folder": np.array(""),
    }  # fmt: skip
    return ImagePredictions(**facts | changes)


def records() -> list[dict[str, Any]]:
    """Two data sets, two methods, one seed."""
    return [
        record("tools", "zero-shot", 0.40, 0.50),
        record("tools", "dear", 0.80, 0.60),
        record("toys", "zero-shot", 0.30, 0.60),
        record("toys", "dear", 0.40, 0.90),
    ]


def role_table() -> dict[str, Any]:
    """Two layers of three heads."""
    roles = [("core", "color"), ("mixed", None), ("generalization", None)]
    roles += [("core", "shape"), ("other-specialized", None), ("mixed", None)]
    heads = [
        {
            "layer": 9 + at // 3, "head": at % 3, "role": role, "attribute": attribute,
            "concept": "Number" if role == "other-specialized" else None, "entropy": 0.4,
            "share": {"color": 0.7, "shape": 0.3},
        }
        for at, (role, attribute) in enumerate(roles)
    ]  # fmt: skip
    weights = {"model": "tiny", "pretrained": "world", "sha256": ""}
    whole = {"schema": 1, "source": "ground-truth factors", "weights": weights}
    return whole | {"attributes": ["color", "shape"], "heads": heads}


def retrieval(results: dict[str, Any]) -> dict[str, Any]:
    """A record of the protocol retrieval."""
    return record("tools", "dear", 0.5, 0.5, protocol="retrieval", results=results)


def neighbours() -> dict[str, Any]:
    """Results of a retrieval: one query with two neighbours by each of three features."""
    near = [
        {"image": PIXEL, "factors": {"color": "red", "shape": "ring"}},
        {"image": PIXEL, "factors": {"color": "blue", "shape": "star"}},
    ]
    query = {
        "image": PIXEL,
        "title": "red star",
        "factors": {"color": "red", "shape": "star"},
        "neighbours": {feature: near for feature in FEATURES},
    }
    chance = {"color": 0.25, "shape": 0.25}
    shares = {"cls": (0.3, 0.25), "color": (0.9, 0.1), "shape": (0.2, 0.8)}
    precision = {name: {"color": color, "shape": shape} for name, (color, shape) in shares.items()}
    return {"queries": [query], "precision": precision, "chance": chance}


def report_html(**content: Any) -> str:
    """The text of the report."""
    return report_page(**content).text
