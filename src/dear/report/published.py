"""The paper's printed results as data, with their sources, and the errors in them (``slips.json``)."""

import csv
import json
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any, Literal

MEASURES = ("base", "novel", "hm")
Numbers = Mapping[str, tuple[float, float | None]]
"""Base, novel and HM in percent, where printed, with the printed standard deviation."""
FOLDER = files("dear.report").joinpath("published")


@cache
def sources() -> dict[str, Any]:
    """The source of each table, and the paper's names of methods and data sets."""
    return dict(json.loads(FOLDER.joinpath("sources.json").read_text(encoding="utf-8")))


@cache
def slips() -> list[dict[str, str]]:
    """What is wrong with printed numbers, or with a row: its ``table``, the paper's name of the ``method``,
    the ``dataset`` unless it is about the row, the ``error``, and the ``source`` that shows it, unless the
    table does. An average contradicts its data sets if it differs by more than 0.05 points from their mean.
    An HM contradicts its base and novel if it is more than 0.05 points below what they give, or more than
    0.01 above: rounding accounts for 0.01, and a mean of the HMs of seeds can be lower than the HM of the
    means, but not higher.
    """
    return list(json.loads(FOLDER.joinpath("slips.json").read_text(encoding="utf-8")))


@cache
def base_to_novel(
    table: Literal["base_to_novel", "seeds"] = "base_to_novel",
) -> dict[tuple[str, str], Numbers]:
    """(Method, data set or "Average"), by the paper's names -> its numbers, in Table 2 or in the supplement's
    Table 3 (``seeds``).
    """
    return {(row["method"], row["dataset"]): _numbers(row) for row in _rows(table)}


@cache
def transfer(protocol: str) -> dict[str, dict[str, float]]:
    """Method by the paper's name -> data set -> percent, for cross-dataset or domain-generalization."""
    rows = _rows(protocol.replace("-", "_"))
    return {row["method"]: {k: float(v) for k, v in row.items() if k != "method"} for row in rows}


@cache
def ablation(name: str) -> dict[str, dict[str, Numbers]]:
    """Data of an ablation ("average of 11", "ImageNet") -> row -> its numbers."""
    by_data: dict[str, dict[str, Numbers]] = {}
    for row in _rows("ablations"):
        if row["ablation"] == name:
            by_data.setdefault(row["data"], {})[row["row"]] = _numbers(row)
    return by_data


def slip_notes(table: str, numbers: Sequence[tuple[str, str]]) -> list[str]:
    """A note for each slip that concerns numbers of a table: of these (method, data set), by the paper's
    names, and of the whole rows of these methods.
    """
    cells = {*numbers} | {(method, None) for method, _ in numbers}
    notes = []
    for slip in slips():
        method, dataset = slip["method"], slip.get("dataset")
        if slip["table"] == table and (method, dataset) in cells:
            where = f"{method}, {dataset}" if dataset else method
            notes.append(f"Slip: {where}: {slip['error']}{f' ({s})' if (s := slip.get('source')) else ''}.")
    return notes


def paper_method(
    method: str, settings: Mapping[str, Any] | None = None, variant: str | None = None
) -> str | None:
    """The paper's name for a method that ran with some settings, if it prints one: it may print a method
    with some of its settings only, whatever label a recipe gives these. No other variant is printed.
    """
    name = sources()["methods"].get(method)
    if variant is not None and not (isinstance(name, dict) and variant == name["label"]):
        return None
    if not isinstance(name, dict):
        return None if name is None else str(name)
    fits = all((settings or {}).get(key) == value for key, value in name["settings"].items())
    return str(name["name"]) if fits else None


def comparable(paper: str, record: Mapping[str, Any]) -> bool:
    """True if a run has the backbone and the number of shots of the printed numbers of a method, by the
    paper's name: otherwise a difference to them says nothing.
    """
    backbone, weights = sources()["backbone"], record.get("weights") or {}
    pretrained = backbone["weights"].get(paper, backbone["weights"]["usual"])
    trained = (record.get("trainable_parameters") or 0) > 0
    return (
        weights.get("model") in backbone["architectures"]
        and weights.get("pretrained") in pretrained
        and (not trained or record.get("shots") == backbone["shots"])
    )


def paper_data_set(name: str) -> str:
    """The paper's name for a data set; the name itself if they agree."""
    return str(sources()["data_sets"].get(name, name))


def _numbers(row: Mapping[str, str]) -> Numbers:
    return {
        measure: (float(row[measure]), float(deviation) if (deviation := row.get(f"{measure}_sd")) else None)
        for measure in MEASURES
        if row[measure]
    }


def _rows(name: str) -> list[dict[str, str]]:
    return list(csv.DictReader(FOLDER.joinpath(f"{name}.csv").read_text(encoding="utf-8").splitlines()))
