"""Retrieval in the report: panels of neighbours, and how often they share a factor with the query."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from dear.errors import plural
from dear.evaluation.schema import part_of
from dear.report.grid import Cell, Grid, GridRow, marked
from dear.report.records import Record

NAME = "retrieval"
# Factors whose name differs from that of the corresponding feature.
FACTOR_OF = {"location": "place"}


def tables(records: Sequence[Record]) -> list[Grid]:
    """The precision averaged over all runs."""
    grid = precision_grid(averaged([part_of(record, "results") for record in records]))
    return [] if grid is None else [grid]


def page(records: Sequence[Record]) -> dict[str, Any]:
    """The variables of the template: panels of the first run, precision of all; {} without records."""
    if not records:
        return {}
    mean = averaged([part_of(record, "results") for record in records])
    return {"panels": [*map(_panel, mean.get("queries") or ())], "precision": precision_grid(mean)}


def averaged(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Combine the results of several retrievals: the queries of the first; precision by feature and factor,
    and chance by factor, as means over those in which the factor varies (fractions).
    """
    varying: dict[str, list[Mapping[str, Any]]] = {}
    for factor in dict.fromkeys(factor for result in results for factor in result.get("chance") or {}):
        if group := [result for result in results if (result.get("chance") or {}).get(factor, 1) < 1]:
            varying[factor] = group
    if not varying:
        return {key: part for key, part in results[0].items() if key != "runs"}  # which is counted here
    precision: dict[str, dict[str, float]] = {}
    for feature in results[0].get("precision") or {}:
        for factor, group in varying.items():
            by_run = [(result.get("precision") or {}).get(feature, {}).get(factor) for result in group]
            if measured := [share for share in by_run if share is not None]:
                precision.setdefault(feature, {})[factor] = fmean(measured)
    chance = {factor: fmean(run["chance"][factor] for run in group) for factor, group in varying.items()}
    return {**results[0], "precision": precision, "chance": chance, "runs": len(results)}


def precision_grid(mean: Mapping[str, Any]) -> Grid | None:
    """How many neighbours share a factor, by feature (down) and factor (across), the best feature of each
    factor marked; the last row is chance, where it is known. None if it was not measured.
    """
    shares: Mapping[str, Mapping[str, float]] = mean.get("precision") or {}
    factors = tuple(dict.fromkeys(factor for row in shares.values() for factor in row))

    def row(label: str, by_factor: Mapping[str, float]) -> GridRow:
        return GridRow(label, tuple(Cell(100 * by_factor[f]) if f in by_factor else None for f in factors))

    if not shares:
        return None
    rows = [*marked([row(feature, by_factor) for feature, by_factor in shares.items()])]
    if chance := mean.get("chance"):
        rows.append(row("(chance)", chance))
    runs = int(mean.get("runs") or 1)
    note = f"Percent of the nearest neighbors that share the factor, mean of {plural(runs, 'run')}."
    return Grid(NAME, "Retrieval by attribute", "Feature", factors, tuple(rows), (note,))


def _panel(query: Mapping[str, Any]) -> dict[str, Any]:
    """A query and its rows: a feature, how many neighbours match, and the neighbours, nearest first."""
    factors = {str(key): str(value) for key, value in (query.get("factors") or {}).items()}
    rows = []
    for feature, neighbours in query["neighbours"].items():
        shared = feature if feature in factors else FACTOR_OF.get(feature, feature)
        shown = [_neighbour(n, shared, factors, rank) for rank, n in enumerate(neighbours, start=1)]
        matches = [neighbour["match"] for neighbour in shown if neighbour["match"] is not None]
        rows.append((feature, f"{sum(matches)} of {len(matches)}" if matches else "factors shared", shown))
    title = str(query.get("title") or ", ".join(factors.values()))
    return {"title": title, "image": _png(query["image"]), "factors": factors, "rows": rows}


def _neighbour(
    neighbour: Mapping[str, Any], factor: str, query: Mapping[str, str], rank: int
) -> dict[str, Any]:
    """An image and its caption: its ``factor``, and whether it is the query's, or how many they share."""
    factors = {str(key): str(value) for key, value in (neighbour.get("factors") or {}).items()}
    alt = f"neighbor {rank}: {', '.join(factors.values()) or 'factors unknown'}"
    common = sum(factors.get(key) == value for key, value in query.items())
    caption, match = f"{common} of {len(query)}" if query else "", None
    if factor in query and factor in factors:
        caption, match = factors[factor], factors[factor] == query[factor]
    return {"image": _png(neighbour["image"]), "alt": alt, "caption": caption, "match": match}


def _png(image: str) -> str:
    return f"data:image/png;base64,{image}"
