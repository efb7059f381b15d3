"""Run records of any protocols to tables: one place that knows which table a record belongs to."""

from collections.abc import Iterable, Mapping, Sequence

from dear.evaluation.ablations import ablations
from dear.report.ablation_tables import ablation_grids
from dear.report.comparison import paired_grid, published_grid
from dear.report.few_shot import few_shot_grid
from dear.report.grid import Cell, Grid, GridRow, marked
from dear.report.reading import Record, distinct, field, protocol, readable
from dear.report.side_by_side import methods_grid
from dear.report.tables import MEASURES, SHOWN, Entry, Measure, Table, base_to_novel_table
from dear.report.transfer import transfer_grid

PROTOCOLS = ("base-to-novel", "cross-dataset", "domain-generalization", "few-shot")


def of_protocol(records: Iterable[Record], name: str) -> list[Record]:
    """The records of one protocol."""
    return [record for record in records if protocol(record) == name]


def main_runs(records: Sequence[Record]) -> list[Record]:
    """The base-to-novel records of the main table: rows of the ablations have tables of their own, unless
    there is nothing else.
    """
    labels = {row.label for one in ablations().values() for row in one.rows if row.label}
    return [record for record in records if record.get("variant") not in labels] or list(records)


def tables_of(records: Iterable[Record]) -> list[Grid]:
    """All tables of some records, in the order of the protocols, then the ablations.

    Raises:
        DataError: for records that may not stand in one table.
    """
    found = readable(records)
    grids: list[Grid] = []
    for name in PROTOCOLS:
        some = of_protocol(found, name)
        if not some:
            continue
        if name == "base-to-novel":
            runs = main_runs(some)
            table = base_to_novel_table(runs)
            grids.append(base_to_novel_grid(table))
            more = methods_grid(table, runs, runs), paired_grid(runs), published_grid(runs)
            grids += [grid for grid in more if grid]
        elif name == "few-shot":
            grids.append(few_shot_grid(some))
        else:
            grids.append(transfer_grid(some, name))
    return grids + ablation_grids(of_protocol(found, "base-to-novel"))


def base_to_novel_grid(table: Table) -> Grid:
    """The result table in the paper's shape as a grid: a row a method and data set."""
    rows: list[GridRow] = []
    for row in table.with_average:
        block = [
            GridRow(f"{row.title}: {method}", tuple(_cell(entry, measure) for measure in MEASURES))
            for method, entry in zip(table.methods, row.entries, strict=True)
        ]
        rows += marked(block)
    seeds = max((cell.seeds for row in rows for cell in row.cells if cell), default=1)
    note = "Mean ± standard deviation over seeds. " if seeds > 1 else "One seed. "
    return Grid(
        "base-to-novel",
        "Base-to-novel generalization",
        "Data set: method",
        tuple(SHOWN[measure] for measure in MEASURES),
        tuple(rows),
        (note + "Percent. The average's HM is that of the averages. Best and second by data set.",),
    )


def _cell(entry: Mapping[Measure, Entry] | None, measure: Measure) -> Cell | None:
    if entry is None:
        return None
    return Cell(entry[measure].mean, entry[measure].std, entry[measure].seeds)


def weights_of(records: Iterable[Record]) -> list[str]:
    """The hashes of the weights that the records are of."""
    return [str(sha) for sha in distinct(field(record, "weights", "sha256") for record in records)]
