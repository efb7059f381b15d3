"""Retrieval in the report: panels of neighbours, and how often they share a factor with the query."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from dear.errors import plural
from dear.evaluation.schema import part_of
from dear.report.grid import Cell, Grid, GridRow, marked
from dear.report.records import Record

NAME = "retrieval"
# Factors whose name differs from that of the corresponding feature.
FACTOR_OF = {"location": "place"}


@dataclass(frozen=True)
class Thumbnail:
    """An image with its caption; `match` is None if the feature corresponds to no single factor."""

    image: str
    alt: str
    caption: str
    match: bool | None


@dataclass(frozen=True)
class Panel:
    """A query and its rows: a feature, how many neighbours match, and the neighbours, nearest first."""

    title: str
    image: str
    factors: tuple[tuple[str, str], ...]
    rows: tuple[tuple[str, str, tuple[Thumbnail, ...]], ...]


def tables(records: Sequence[Record]) -> list[Grid]:
    """The precision averaged over all runs."""
    grid = precision_grid(averaged([part_of(record, "results") for record in records]))
    return [] if grid is None else [grid]


def page(records: Sequence[Record]) -> dict[str, Any]:
    """The variables of the template, also if there are no records: panels of the first run, and the
    precision.
    """
    mean = averaged([part_of(record, "results") for record in records]) if records else {}
    return {
        "panels": panels(mean),
        "retrievals": int(mean.get("runs") or 1),
        "precision": precision_grid(mean),
    }


def averaged(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Combine the results of several retrievals: the queries of the first; precision by feature and factor,
    and chance by factor, as means over those in which the factor varies (fractions).
    """
    varying: dict[str, list[Mapping[str, Any]]] = {}
    for factor in dict.fromkeys(factor for result in results for factor in result.get("chance") or {}):
        group = [result for result in results if (result.get("chance") or {}).get(factor, 1) < 1]
        if group:
            varying[factor] = group
    if not varying:
        return {key: part for key, part in results[0].items() if key != "runs"}  # which is counted here
    precision: dict[str, dict[str, float]] = {}
    for feature in results[0].get("precision") or {}:
        for factor, group in varying.items():
            by_run = [(result.get("precision") or {}).get(feature, {}).get(factor) for result in group]
            if measured := [share for share in by_run if share is not None]:
                precision.setdefault(feature, {})[factor] = fmean(measured)
    chance = {
        factor: fmean(result["chance"][factor] for result in group) for factor, group in varying.items()
    }
    return {**results[0], "precision": precision, "chance": chance, "runs": len(results)}


def panels(retrieval: Mapping[str, Any]) -> list[Panel]:
    """The panels of the retrieval's queries."""
    panels = []
    for query in retrieval.get("queries") or ():
        factors = {str(key): str(value) for key, value in (query.get("factors") or {}).items()}
        rows = []
        for feature, neighbours in query["neighbours"].items():
            thumbnails = tuple(
                _thumbnail(neighbour, str(feature), factors, rank)
                for rank, neighbour in enumerate(neighbours, start=1)
            )
            rows.append((str(feature), _tally(thumbnails), thumbnails))
        title = str(query.get("title") or ", ".join(factors.values()))
        panels.append(Panel(title, _data_uri(query["image"]), tuple(factors.items()), tuple(rows)))
    return panels


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
    return Grid("retrieval", "Retrieval by attribute", "Feature", factors, tuple(rows), (note,))


def _thumbnail(neighbour: Mapping[str, Any], feature: str, query: Mapping[str, str], rank: int) -> Thumbnail:
    factors = {str(key): str(value) for key, value in (neighbour.get("factors") or {}).items()}
    factor = FACTOR_OF.get(feature, feature) if feature not in query else feature
    alt = f"neighbor {rank}: {', '.join(factors.values()) or 'factors unknown'}"
    if factor in query and factor in factors:
        match = factors[factor] == query[factor]
        return Thumbnail(_data_uri(neighbour["image"]), alt, factors[factor], match)
    common = sum(factors.get(key) == value for key, value in query.items())
    caption = f"{common} of {len(query)}" if query else ""
    return Thumbnail(_data_uri(neighbour["image"]), alt, caption, None)


def _tally(thumbnails: tuple[Thumbnail, ...]) -> str:
    matches = [thumbnail.match for thumbnail in thumbnails if thumbnail.match is not None]
    return f"{sum(matches)} of {len(matches)}" if matches else "factors shared"


def _data_uri(image: str) -> str:
    return f"data:image/png;base64,{image}"
