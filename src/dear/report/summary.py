"""What the report says of the runs of a protocol, whatever the protocol."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pandas import DataFrame

from dear.report.drawing import Drawing
from dear.report.grid import Cell, Grid
from dear.report.records import Record


@dataclass(frozen=True)
class Figure:
    """A figure of the page above the table ``grid``; ``name`` is its heading, for screen readers too."""

    grid: str
    drawing: Drawing
    name: str
    caption: str


@dataclass(frozen=True)
class ProtocolSummary:
    """What the report says of the runs of a protocol.

    Attributes:
        runs: Those that the page describes; the others are rows of the ablation tables among ``grids``.
        standing: What the page begins with: by measure the numbers of methods, the verdict last.
        outcomes: A row a run: "label", "title" of what it was tested on, "seed", and the "value", in percent,
            of the ``measure`` by which methods are compared; None if they are not.
        template: What shows the tables on the page, with its ``variables`` as "part"; None shows each table
            below its heading.
    """

    runs: Sequence[Record]
    grids: Sequence[Grid]
    figures: Sequence[Figure] = ()
    standing: Mapping[str, Mapping[str, Cell]] = field(default_factory=dict)
    outcomes: DataFrame | None = None
    measure: str = ""
    template: str | None = None
    variables: Mapping[str, Any] = field(default_factory=dict)
