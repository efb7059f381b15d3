"""Whether what a file holds is a run record, so that the tables need not ask: the shape of its parts."""

import math
from collections.abc import Mapping
from typing import Any

from dear.errors import DataError
from dear.evaluation.schema import SCHEMA
from dear.report.reading import Record, accuracy, field, protocol

PARTS = {"base-to-novel": ("base", "novel"), "few-shot": ("all",), "retrieval": ()} | dict.fromkeys(
    ("cross-dataset", "domain-generalization"), ("source",)
)
"""The parts of the results of each protocol."""
NEEDED: Mapping[tuple[str, ...], type] = {
    ("method",): str,
    ("seed",): int,
    ("dataset", "name"): str,
    ("weights", "sha256"): str,
    ("results",): dict,
}
OPTIONAL: Mapping[tuple[str, ...], type] = {
    ("variant",): str,
    ("settings",): dict,
    ("shots",): int,
    ("selection",): dict,
    ("environment",): dict,
    ("seconds",): dict,
    ("peak_memory",): dict,
    ("targets",): list,
    ("fusion_weights",): dict,
    ("train",): dict,
    ("train", "epochs"): list,
    ("roles",): dict,
    ("roles", "table"): dict,
    ("roles", "table", "heads"): list,
}
COSTS = (
    ("trainable_parameters",),
    ("seconds", "train"),
    ("seconds", "test"),
    ("peak_memory", "resident"),
    ("peak_memory", "gpu"),
)
EMPTY = object()


def check_record(record: Record) -> None:
    """Raise DataError for another schema version or protocol, and for the first part that is missing, of
    another type or no number where one is needed.
    """
    if record.get("schema") != SCHEMA:
        raise DataError(
            f"it has schema {record.get('schema')!r}, this version reads schema {SCHEMA}: "
            "report it with the version of dear that wrote it"
        )
    if (told := protocol(record)) not in PARTS:
        raise DataError(f"its protocol {told!r} is none of {', '.join(PARTS)}")
    for path, kind in NEEDED.items():
        _typed(field(record, *path), kind, path)
    for path, kinds in OPTIONAL.items():
        if (value := _at(record, path)) not in (EMPTY, None):
            _typed(value, kinds, path)
    for path in COSTS:
        if (value := _at(record, path)) not in (EMPTY, None):
            _number(value, ".".join(path))
    if told == "retrieval":
        return
    if told == "few-shot":
        _typed(field(record, "shots"), int, ("shots",))
    for part in PARTS[told]:
        _accuracies(record, part)
    for one in record.get("targets") or () if "source" in PARTS[told] else ():
        _accuracies(record, "targets", str(one.get("name")) if isinstance(one, Mapping) else str(one))
    for epoch in (record.get("train") or {}).get("epochs") or ():
        _number(epoch.get("loss") if isinstance(epoch, Mapping) else None, "train.epochs.loss")
    for name, weight in (record.get("fusion_weights") or {}).items():
        _number(weight, f"fusion_weights.{name}")


def _accuracies(record: Record, *part: str) -> None:
    accuracy(record, *part)
    if field(record, "results", *part).get("decoupled") is not None:
        accuracy(record, *part, read="decoupled")


def _at(record: Any, path: tuple[str, ...]) -> Any:
    for key in path:
        if not isinstance(record, Mapping) or key not in record:
            return EMPTY
        record = record[key]
    return record


def _typed(value: Any, kind: type, path: tuple[str, ...]) -> None:
    if not isinstance(value, kind) or isinstance(value, bool):
        raise DataError(f"its {'.'.join(path)} is {str(value)[:40]!r}, of another type than in a record")


def _number(value: Any, where: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise DataError(f"its {where} is {value!r}, which is no number")
