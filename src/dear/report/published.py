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
SPELLED = {"base": "base", "novel": "novel", "hm": "HM"}


@dataclass(frozen=True)
class Slip:
    """What is wrong with a printed number, or with a whole row of a published table.

    Attributes:
        table: The table, by the name of its file.
        method, dataset: Where, by the paper's names; a row of all data sets has None.
        said: What is wrong.
        source: Where it shows; "" if in the table itself.
    """

    table: str
    method: str
    dataset: str | None
    said: str
    source: str = ""

    def __str__(self) -> str:
        where = self.method if self.dataset is None else f"{self.method}, {self.dataset}"
        return f"{where}: {self.said}{self.source and f' ({self.source})'}"


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
def other_averages() -> dict[str, dict[str, float]]:
    """Method by our name -> base, novel, hm: averages over the 11 data sets of methods that the paper's table
    lacks.
    """
    rows = json.loads(_text("averages.json"))["rows"]
    return {row["method"]: {name: row[name] for name in ("base", "novel", "hm")} for row in rows}


@cache
def transfer(protocol: str) -> dict[str, dict[str, float]]:
    """Method by the paper's name -> data set -> percent, for cross-dataset or domain-generalization."""
    rows = _rows(protocol.replace("-", "_"))
    return {row["method"]: {k: float(v) for k, v in row.items() if k != "method"} for row in rows}


@cache
def ablation(name: str) -> dict[str, dict[str, dict[str, float]]]:
    """Data of an ablation ("average of 11", "ImageNet") -> row -> base, novel, hm, where printed."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for row in _rows("ablations"):
        if row["ablation"] == name:
            numbers = {m: float(row[m]) for m in ("base", "novel", "hm") if row[m]}
            found.setdefault(row["data"], {})[row["row"]] = numbers
    return found


@cache
def slips() -> tuple[Slip, ...]:
    """All slips known of the published tables: numbers of the base-to-novel table that contradict others of
    their row by more than the tolerance, and those of ``slips.json``, which other sources show.
    """
    return (*_contradictions(), *_listed())


def slips_of(table: str, shown: Iterable[tuple[str, str]]) -> list[Slip]:
    """The slips that concern numbers of a table: of these (method, data set), by the paper's names, and of
    the whole rows of these methods.
    """
    cells = set(shown)
    methods = {method for method, _ in cells}
    return [
        slip
        for slip in slips()
        if slip.table == table
        and (slip.method in methods if slip.dataset is None else (slip.method, slip.dataset) in cells)
    ]


def paper_method(method: str, settings: Mapping[str, Any] | None = None) -> str | None:
    """The paper's name for a method that ran with some settings, if it prints one: it may print a method
    with some of its settings only.
    """
    found = sources()["methods"].get(method)
    if not isinstance(found, dict):
        return None if found is None else str(found)
    fits = all((settings or {}).get(name) == value for name, value in found["settings"].items())
    return str(found["name"]) if fits else None


def comparable(paper: str, record: Mapping[str, Any]) -> bool:
    """Whether a run has the backbone and the number of shots of the printed numbers of a method, by the
    paper's name: otherwise a difference to them says nothing.
    """
    told, weights = sources()["backbone"], record.get("weights") or {}
    known = told["weights"].get(paper, told["weights"]["usual"])
    trained = (record.get("trainable_parameters") or 0) > 0
    return (
        weights.get("model") in told["architectures"]
        and weights.get("pretrained") in known
        and (not trained or record.get("shots") == told["shots"])
    )


def paper_data_set(name: str) -> str:
    """The paper's name for a data set; the name itself if they agree."""
    return str(sources()["data_sets"].get(name, name))


def _contradictions() -> list[Slip]:
    """The HMs and averages of the base-to-novel table that its own numbers do not give."""
    found = []
    table = base_to_novel()
    for (method, dataset), numbers in table.items():
        computed = harmonic_mean(numbers["base"], numbers["novel"])
        if abs(computed - numbers["hm"]) > TOLERANCE:
            said = f"the published HM is {numbers['hm']:.2f}; its own base and novel give {computed:.2f}"
            found.append(Slip("base_to_novel", method, dataset, said))
    for method in dict.fromkeys(method for method, _ in table):
        averages = table[method, AVERAGE]
        rows = [row for (one, dataset), row in table.items() if one == method and dataset != AVERAGE]
        for measure in ("base", "novel"):
            computed = fmean(row[measure] for row in rows)
            if abs(computed - averages[measure]) > TOLERANCE:
                said = f"the published average {measure} is {averages[measure]:.2f}; that of its own "
                found.append(Slip("base_to_novel", method, None, f"{said}data sets is {computed:.2f}"))
    return found


def _listed() -> list[Slip]:
    """The slips of ``slips.json``."""
    told = json.loads(_text("slips.json"))
    found = []
    for one in told["slips"]:
        said = one.get("said")
        if said is None:
            name = SPELLED[one["measure"]]
            said = f"the published {name} is {one['printed']:.2f}; elsewhere it is {one['elsewhere']:.2f}"
        source = told.get(one["source"], one["source"])
        found.append(Slip(one["table"], one["method"], one.get("dataset"), said, source))
    return found


def _rows(name: str) -> list[dict[str, str]]:
    return list(csv.DictReader(_text(f"{name}.csv").splitlines()))


def _text(name: str) -> str:
    return files("dear.report").joinpath("published", name).read_text(encoding="utf-8")
