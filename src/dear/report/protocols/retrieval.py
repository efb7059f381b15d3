"""Retrieval in the report: panels of neighbors, and how often they share a factor with the query."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from dear.evaluation.records import part_of
from dear.report.grid import Cell, Grid, GridRow, marked
from dear.report.records import Record, grouped, method_label, record_title
from dear.report.summary import ProtocolSummary
from dear.text import plural

NAME, TITLE = "retrieval", "Retrieval by attribute"
# Factors whose name differs from that of the corresponding feature.
FACTOR_OF = {"location": "place"}
Shares = Mapping[str, Mapping[str, float]]
"""Feature (or "(chance)") -> factor -> share of the neighbors, a fraction."""


def summarize(records: Sequence[Record], reference: str | None) -> ProtocolSummary:
    """The precision of each method, averaged over its runs, and the neighbors of the first as pictures."""
    del reference
    by_method = grouped(records, method_label)
    grids = [precision_grid([part_of(run, "results") for run in runs]) for runs in by_method.values()]
    names = [NAME, *(f"{NAME}-{number}" for number in range(2, len(grids) + 1))]
    titles = [f"{TITLE}: {label}" if len(grids) > 1 else TITLE for label in by_method]
    shown = [
        replace(grid, name=name, title=title)
        for grid, name, title in zip(grids, names, titles, strict=True)
        if grid
    ]
    variables = {
        "queries": part_of(records[0], "results").get("queries") or (),
        "precision": shown,
        "run": record_title(records[0]) if len(records) > 1 else "",
        "factor_of": _factor_of,
        "picture": _picture,
    }
    return ProtocolSummary(records, shown, template="retrieval.html.j2", variables=variables)


def precision_grid(results: Sequence[Mapping[str, Any]]) -> Grid | None:
    """How many neighbors share a factor, by feature (down) and factor (across), means over the retrievals in
    which the factor varies; the best feature of each factor is marked; the last row is chance. None if it
    was not measured.
    """
    shares = [{**result["precision"], "(chance)": result["chance"]} for result in results]
    factors = [factor for factor in shares[0]["(chance)"] if any(of["(chance)"][factor] < 1 for of in shares)]

    def row(feature: str) -> GridRow:
        values = [[of[feature].get(f) for of in shares if of["(chance)"].get(f, 1) < 1] for f in factors]
        measured = [[100 * share for share in of_factor if share is not None] for of_factor in values]
        return GridRow(feature, tuple(Cell(fmean(part)) if part else None for part in measured))

    if not factors:
        return None
    *features, chance = map(row, shares[0])
    note = f"Percent of the nearest neighbors that share the factor, mean of {plural(len(results), 'run')}."
    rows = (*marked(features), chance)
    return Grid(NAME, TITLE, "Feature", tuple(factors), rows, (note,))


def _factor_of(feature: str, factors: Mapping[str, str]) -> str:
    """The factor that the neighbors by a feature may share: of photographs the class alone is known."""
    return next(iter(factors)) if len(factors) == 1 else FACTOR_OF.get(feature, feature)


def _picture(image: str) -> str:
    """The URL of a picture in base64: a JPEG begins with the bytes ff d8 ff."""
    return f"data:image/{'jpeg' if image.startswith('/9j/') else 'png'};base64,{image}"
