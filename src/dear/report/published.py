"""The paper's printed results as data, with their sources, and the errors in them."""

import csv
import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from dear.evaluation.schema import harmonic_mean

TOLERANCE = 0.05
"""Points. Rounding of the three numbers accounts for 0.01; a mean of per-seed HMs can differ slightly more.
"""


@dataclass(frozen=True)
class Slip:
    """A printed HM that contradicts its own printed base and novel (percent)."""

    method: str
    dataset: str
    printed: float
    computed: float

    def __str__(self) -> str:
        return (
            f"{self.method}, {self.dataset}: the published HM is {self.printed:.2f}; its own base and novel "
            f"give {self.computed:.2f}"
        )


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
    found: dict[str, dict[str, dict[str, float]]] = {}
    for row in _rows("ablations"):
        if row["ablation"] == name:
            numbers = {m: float(row[m]) for m in ("base", "novel", "hm") if row[m]}
            found.setdefault(row["data"], {})[row["row"]] = numbers
    return found


@cache
def slips() -> tuple[Slip, ...]:
    """Printed HMs of single data sets that contradict their own base and novel by more than the tolerance."""
    found = []
    for (method, dataset), numbers in base_to_novel().items():
        computed = harmonic_mean(numbers["base"], numbers["novel"])
        if abs(computed - numbers["hm"]) > TOLERANCE:
            found.append(Slip(method, dataset, numbers["hm"], computed))
    return tuple(found)


def paper_method(method: str) -> str | None:
    """The paper's name for a method, if it prints one."""
    name: str | None = sources()["methods"].get(method)
    return name


def paper_data_set(name: str) -> str:
    """The paper's name for a data set; the name itself if they agree."""
    return str(sources()["data_sets"].get(name, name))


def _rows(name: str) -> list[dict[str, str]]:
    return list(csv.DictReader(_text(f"{name}.csv").splitlines()))


def _text(name: str) -> str:
    return files("dear.report").joinpath("published", name).read_text(encoding="utf-8")
