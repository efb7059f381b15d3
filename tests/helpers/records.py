"""Records of runs and their companions, made by hand, and their numbers for comparisons."""

import base64
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from dear.evaluation.predictions import ImagePredictions
from dear.evaluation.records import SCHEMA
from dear.report.report_page import report_page
from dear.roles.ablation import Ablated, LayerAblation, LayerCurve
from dear.roles.pictures import HeadGallery, HeadImages, Look, RankedImage
from dear.roles.table import RoleTable
from tests.helpers.methods import without_seconds

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
        "groups": np.arange(len(labels)), "paths": np.array([], dtype=str), "folder": np.array(""),
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


def neighbors() -> dict[str, Any]:
    """Results of a retrieval: one query with two neighbors by each of three features."""
    near = [
        {"image": PIXEL, "factors": {"color": "red", "shape": "ring"}},
        {"image": PIXEL, "factors": {"color": "blue", "shape": "star"}},
    ]
    query = {
        "image": PIXEL,
        "title": "red star",
        "factors": {"color": "red", "shape": "star"},
        "neighbors": {feature: near for feature in FEATURES},
    }
    chance = {"color": 0.25, "shape": 0.25}
    shares = {"cls": (0.3, 0.25), "color": (0.9, 0.1), "shape": (0.2, 0.8)}
    precision = {name: {"color": color, "shape": shape} for name, (color, shape) in shares.items()}
    return {"queries": [query], "precision": precision, "chance": chance}


def material() -> dict[str, Any]:
    """All that a report can show."""
    runs = [*records(), retrieval(neighbors())]
    for run in runs:
        run["roles"] = run["roles"] and run["roles"] | {"table": role_table()}
    return {"title": "A demo", "records": runs, "notes": ["A small world."]}


def report_html(**content: Any) -> str:
    """The text of the report."""
    return report_page(**content).text


def score(accuracy: float, decoupled: float | None = None) -> dict[str, Any]:
    return {"accuracy": accuracy, "decoupled": accuracy if decoupled is None else decoupled, "per_class": {}}


def ablated(data: str, variant: str | None, base: float, novel: float, **options: Any) -> dict[str, Any]:
    results = {"base": score(base, base - 0.1), "novel": score(novel, novel - 0.2), "hm": 0.5}
    return record(data, "dear", base, novel, variant=variant, results=results, **options)


def few(data: str, method: str, shots: int, accuracy: float, seed: int = 1) -> dict[str, Any]:
    made = record(
        data, method, 0, 0, seed=seed, protocol="few-shot", shots=shots, results={"all": score(accuracy)}
    )
    return made | {"key": f"{data} {method} {shots} {seed}"}


def moved(
    method: str, source: float, targets: dict[str, float], protocol: str = "cross-dataset",
    name: str = "tools", fused: float = 0.0,
) -> dict[str, Any]:  # fmt: skip
    """``fused`` is by how much the accuracy with all features is above that of the class feature, by which
    the targets are scored.
    """
    results = {
        "source": score(source + fused, source) | {"fused": source + fused},
        "targets": {k: score(v) | {"fused": v + fused} for k, v in targets.items()},
    }
    told = [{"name": name, "title": name.title(), "identity": name} for name in targets]
    made = record(name, method, 0, 0, protocol=protocol, results=results, targets=told)
    return made | {"key": f"{protocol} {method}"}


def table(**changes: Any) -> RoleTable:
    """Two layers of three heads, with all the evidence that a discovered table has."""
    rows = [
        (9, 0, "core", "color", 0.2, {"color": 0.9, "shape": 0.1}, ["red & <b>", "blue"]),
        (9, 1, "mixed", None, 0.9, {"shape": 0.6, "style": 0.4}, ["a circle"] * 11),
        (9, 2, "generalization", None, 1.3, {"style": 1.0}, ["a sketch"]),
        (10, 0, "other-specialized", None, 0.1, {"animal": 1.0}, ["a dog"]),
        (10, 1, "mixed", None, 0.8, {"color": 0.5, "animal": 0.5}, ["teal"]),
        (10, 2, "core", "shape", 0.15, {"shape": 1.0}, ["a square"]),
    ]
    heads = [
        {
            "layer": layer, "head": head, "role": role, "attribute": attribute, "concept": next(iter(share)),
            "entropy": entropy, "share": share, "phrases": phrases,
        }
        for layer, head, role, attribute, entropy, share, phrases in rows
    ]  # fmt: skip
    clusters = [{"concept": "color", "size": 31, "exemplars": ["red & <b>"]}]
    clusters += [{"concept": "animal", "size": 17, "exemplars": []}]
    evidence = {
        "clusters": clusters,
        "dbcv": 0.31,
        "tried": [
            {"min_size": 15, "selection": "eom", "clusters": 2, "left_out": 0.1, "dbcv": 0.31},
            {"min_size": 99, "selection": "eom", "clusters": 1, "left_out": 0.0, "dbcv": None},
        ],
        "dbcv_by_k": {"3": 0.25},
        "thresholds": [0.15, 0.9],
        "phrases": 7,
        "left_out_by_hdbscan": 2,
    }
    weights = {"model": "small", "pretrained": "random", "sha256": "ab" * 32}
    whole = {"schema": 1, "source": "by <hand>", "weights": weights, "attributes": ["color", "shape"]}
    settings = {"k": 2, "min_sizes": [15, 99]}
    content = {**whole, "heads": heads, "settings": settings, "evidence": evidence, **changes}
    return RoleTable.from_json(content, "the table")


PLACES = [(layer, head) for layer in (9, 10) for head in range(3)]


def noise_pictures(places: list[tuple[int, int]], a_head: int, images: int, side: int = 64) -> HeadGallery:
    """Noise is the worst case of a JPEG. The images of the heads are taken in turn."""
    generator = torch.Generator().manual_seed(1)
    heads, used = {}, set[int]()
    for at, place in enumerate(places):
        mine = [(2 * a_head * at + one) % images for one in range(2 * a_head)]
        used |= {*mine}
        rows = [tuple(RankedImage(one, 2.5) for one in half) for half in (mine[:a_head], mine[a_head:])]
        heads[place] = HeadImages(*rows)
    draw = {
        one: torch.randint(0, 256, (3, side, side), generator=generator, dtype=torch.uint8) for one in used
    }
    [first, *_] = used
    looks = {places[0]: (Look(first, torch.tensor([[0.25, 0.0], [1.0, -0.25]]), 0.25),) * 2}
    return HeadGallery(images, heads, draw, {one: f"<b>{one}" for one in draw}, looks)


def curve(lost: float) -> LayerCurve:
    part = Ablated(1 - lost / 2, lost)
    layers = tuple(LayerAblation(layer, part, part) for layer in range(1, 11))
    return LayerCurve(120, 0.5, layers, part, (9, 10))


def numbers(record: dict[str, Any]) -> Any:
    """What a run computed, without what the clock tells."""
    epochs = without_seconds(record["train"]["epochs"])
    return [epochs, record["results"], record["fusion_weights"], record["fewshot"]]
