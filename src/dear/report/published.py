"""The paper's printed results as data, with their sources, and the errors in them."""

import csv
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from statistics import fmean
from typing import Any

from dear.evaluation.schema import harmonic_mean

TOLERANCE = 0.05
"""Points. Rounding of the three numbers accounts for 0.01; a mean of per-seed HMs can differ slightly more.
"""

AVERAGE = "Average"
MEASURE_NAMES = {"base": "base", "novel": "novel", "hm": "HM"}


@dataclass(frozen=True)
class Slip:
    """What is wrong with a printed number, or with a whole row of a published table.

    Attributes:
        table: The table, by the name of its file.
        method, dataset: The paper's names; a row of all data sets has None.
        error: What is wrong.
        source: What shows it; "" if the table itself does.
    """

    table: str
    method: str
    dataset: str | None
    error: str
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
    return {
        (row["method"], row["dataset"]): {name: float(row[name]) for name in ("base", "novel", "hm")}
        for row in _rows("base_to_novel")
    }


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
            numbers = {m: float(row[m]) for m in ("base", "novel", "hm") if row[m]}
            by_data.setdefault(row["data"], {})[row["row"]] = numbers
    return by_data


@cache
def slips() -> tuple[Slip, ...]:
    """All slips known of the published tables: numbers of the base-to-novel table that contradict others of
    their row by more than the tolerance, and those of ``slips.json``, which other sources show.
    """
    return (*_contradictions(), *_listed())


def slips_of(table: str, numbers: Iterable[tuple[str, str]]) -> list[Slip]:
    """The slips that concern numbers of a table: of these (method, data set), by the paper's names, and of
    the whole rows of these methods.
    """
    cells = set(numbers)
    methods = {method for method, _ in cells}
    return [
        slip
        for slip in slips()
        if slip.table == table
        and (slip.method in methods if slip.dataset is None else (slip.method, slip.dataset) in cells)
    ]


def slip_notes(table: str, numbers: Iterable[tuple[str, str]]) -> list[str]:
    """A note for each of these slips."""
    return [f"Slip: {slip}." for slip in slips_of(table, numbers)]


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


def _contradictions() -> list[Slip]:
    """The HMs and averages of the base-to-novel table that its own numbers do not give."""
    slips = []
    table = base_to_novel()
    for (method, dataset), numbers in table.items():
        computed = harmonic_mean(numbers["base"], numbers["novel"])
        if abs(computed - numbers["hm"]) > TOLERANCE:
            error = f"the published HM is {numbers['hm']:.2f}; its own base and novel give {computed:.2f}"
            slips.append(Slip("base_to_novel", method, dataset, error))
    for method in dict.fromkeys(method for method, _ in table):
        averages = table[method, AVERAGE]
        rows = [row for (name, dataset), row in table.items() if name == method and dataset != AVERAGE]
        for measure in ("base", "novel"):
            computed = fmean(row[measure] for row in rows)
            if abs(computed - averages[measure]) > TOLERANCE:
                error = f"the published average {measure} is {averages[measure]:.2f}; that of its own "
                slips.append(Slip("base_to_novel", method, None, f"{error}data sets is {computed:.2f}"))
    return slips


def _listed() -> list[Slip]:
    """The slips of ``slips.json``."""
    listed = json.loads(_text("slips.json"))
    slips = []
    for slip in listed["slips"]:
        error = slip.get("said")
        if error is None:
            name = MEASURE_NAMES[slip["measure"]]
            error = f"the published {name} is {slip['printed']:.2f}; elsewhere it is {slip['elsewhere']:.2f}"
        source = listed.get(slip["source"], slip["source"])
        slips.append(Slip(slip["table"], slip["method"], slip.get("dataset"), error, source))
    return slips


def _rows(name: str) -> list[dict[str, str]]:
    return list(csv.DictReader(_text(f"{name}.csv").splitlines()))


def _text(name: str) -> str:
    return files("dear.report").joinpath("published", name).read_text(encoding="utf-8")
