"""Retrieval in the report: panels of neighbours, and how often they share a factor with the query."""

import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, ClassVar

from dear.errors import DataError
from dear.evaluation.schema import part_of
from dear.report.grid import Cell, Grid, GridRow
from dear.report.protocols import ProtocolReport
from dear.report.records import Record

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


@dataclass(frozen=True)
class PrecisionTable:
    """Features down, factors across: percent of the neighbours that share the factor, the best marked."""

    factors: tuple[str, ...]
    rows: tuple[tuple[str, tuple[tuple[str, bool], ...]], ...]


class RetrievalReport(ProtocolReport):
    """A section of the page: panels of the first run, and precision averaged over all runs."""

    illustrates: ClassVar[bool] = True
    section: ClassVar[str | None] = "protocols/retrieval.html.j2"

    def tables(self, records: Sequence[Record]) -> list[Grid]:
        mean = averaged([part_of(record, "results") for record in records])
        factors = tuple(dict.fromkeys(name for row in mean.get("precision", {}).values() for name in row))
        shares = {**mean.get("precision", {}), "(chance)": mean.get("chance", {})}
        rows = [
            GridRow(feature, tuple(Cell(100 * row[name]) if name in row else None for name in factors))
            for feature, row in shares.items()
        ]
        note = f"Percent of the nearest neighbours that share the factor, mean of {len(records)} run"
        title = "Retrieval by attribute"
        notes = (f"{note}{'s' * (len(records) > 1)}.",)
        return [Grid("retrieval", title, "Feature", factors, tuple(rows), notes)]

    def page(self, records: Sequence[Record], main: str, reference: str | None) -> dict[str, Any]:
        del main, reference
        mean = averaged([part_of(record, "results") for record in records]) if records else {}
        return {
            "panels": panels(mean),
            "retrievals": int(mean.get("runs") or 1),
            "precision": precision_table(mean.get("precision"), mean.get("chance")),
        }


REPORT = RetrievalReport()


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
        return dict(results[0])
    precision = {
        feature: {
            factor: fmean(result["precision"][feature][factor] for result in group)
            for factor, group in varying.items()
        }
        for feature in results[0]["precision"]
    }
    chance = {
        factor: fmean(result["chance"][factor] for result in group) for factor, group in varying.items()
    }
    return {**results[0], "precision": precision, "chance": chance, "runs": len(results)}


def panels(retrieval: Mapping[str, Any]) -> list[Panel]:
    """The panels of the retrieval's queries.

    Raises:
        DataError: if an image is not base64 text.
    """
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


def precision_table(
    precision: Mapping[str, Mapping[str, float]] | None, chance: Mapping[str, float] | None = None
) -> PrecisionTable | None:
    """The precision by feature and factor, with the best feature of each factor marked and a last row for
    chance where it is known; None if precision is not.
    """
    if not precision:
        return None
    factors = list(dict.fromkeys(factor for row in precision.values() for factor in row))
    percent = {
        feature: {factor: round(100 * row[factor], 1) for factor in factors if factor in row}
        for feature, row in precision.items()
    }
    tops = {factor: max(row[factor] for row in percent.values() if factor in row) for factor in factors}
    rows = tuple(
        (
            feature,
            tuple(
                (f"{row[factor]:.1f}", row[factor] == tops[factor]) if factor in row else ("–", False)
                for factor in factors
            ),
        )
        for feature, row in percent.items()
    )
    if chance:
        guesses = tuple((f"{100 * chance[name]:.1f}" if name in chance else "–", False) for name in factors)
        rows = (*rows, ("(chance)", guesses))
    return PrecisionTable(tuple(factors), rows)


def _thumbnail(neighbour: Mapping[str, Any], feature: str, query: Mapping[str, str], rank: int) -> Thumbnail:
    factors = {str(key): str(value) for key, value in (neighbour.get("factors") or {}).items()}
    factor = FACTOR_OF.get(feature, feature) if feature not in query else feature
    alt = f"neighbour {rank}: {', '.join(factors.values()) or 'factors unknown'}"
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
    try:
        base64.b64decode(image, validate=True)
    except (binascii.Error, ValueError, TypeError) as error:
        raise DataError(f"a retrieval image is not base64 text: {error}") from error
    return f"data:image/png;base64,{image}"
