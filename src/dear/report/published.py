"""The paper's printed results as data, with their sources, and the errors in them."""

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

MEASURES = ("base", "novel", "hm")


@dataclass(frozen=True)
class Slip:
    """What is wrong with a printed number, or with a whole row of a published table.

    Attributes:
        table: The table, by the name of its file.
        method, dataset: The paper's names; a row of all data sets has None.
        error: What is wrong; a number contradicts others if it differs by more than 0.05 points from what
            they give, since rounding accounts for 0.01 and a mean of per-seed HMs can differ slightly more.
        source: What shows it; "" if the table itself does.
    """

    table: str
    method: str
    error: str
    dataset: str | None = None
    source: str = ""

    def __str__(self) -> str:
        where = self.method if self.dataset is None else f"{self.method}, {self.dataset}"
        return f"{where}: {self.error}{self.source and f' ({self.source})'}"


@cache
def sources() -> dict[str, Any]:
    """The source of each table, and the paper's names of methods and data sets."""
    return dict(json.loads(_text("sources.json")))


@cache
def base_to_novel() -> dict[tuple[str, str], dict[str, float]]:
    """(Method, data set), by the paper's names -> base, novel, hm in percent."""
    rows = _rows("base_to_novel")
    return {(row["method"], row["dataset"]): {m: float(row[m]) for m in MEASURES} for row in rows}


@cache
def transfer(protocol: str) -> dict[str, dict[str, float]]:
    """Method by the paper's name -> data set -> percent, for cross-dataset or domain-generalization."""
    rows = _rows(protocol.replace("-", "_"))
    return {row["method"]: {k: float(v) for k, v in row.items() if k != "method"} for row in rows}


@cache
def ablation(name: str) -> dict[str, dict[str, dict[str, float]]]:
    """Data of an ablation ("average of 11", "ImageNet") -> row -> base, novel, hm, where printed."""
    by_data: dict[str, dict[str, dict[str, float]]] = {}
    for row in _rows("ablations"):
        if row["ablation"] == name:
            numbers = {measure: float(row[measure]) for measure in MEASURES if row[measure]}
            by_data.setdefault(row["data"], {})[row["row"]] = numbers
    return by_data


@cache
def slips() -> tuple[Slip, ...]:
    """All slips known of the published tables: numbers that contradict others of their row, and those that
    other sources show.
    """
    return tuple(Slip(**slip) for slip in json.loads(_text("slips.json")))


def slip_notes(table: str, numbers: Sequence[tuple[str, str]]) -> list[str]:
    """A note for each slip that concerns numbers of a table: of these (method, data set), by the paper's
    names, and of the whole rows of these methods.
    """
    cells = {*numbers} | {(method, None) for method, _ in numbers}
    return [f"Slip: {s}." for s in slips() if s.table == table and (s.method, s.dataset) in cells]


def paper_method(method: str, settings: Mapping[str, Any] | None = None) -> str | None:
    """The paper's name for a method that ran with some settings, if it prints one: it may print a method
    with some of its settings only.
    """
    name = sources()["methods"].get(method)
    if not isinstance(name, dict):
        return None if name is None else str(name)
    fits = all((settings or {}).get(key) == value for key, value in name["settings"].items())
    return str(name["name"]) if fits else None


def comparable(paper: str, record: Mapping[str, Any]) -> bool:
    """Whether a run has the backbone and the number of shots of the printed numbers of a method, by the
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


def _rows(name: str) -> list[dict[str, str]]:
    return list(csv.DictReader(_text(f"{name}.csv").splitlines()))


def _text(name: str) -> str:
    return files("dear.report").joinpath("published", name).read_text(encoding="utf-8")
