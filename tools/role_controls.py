"""`dear+` with shuffled and with random role tables: `python -m tools.role_controls FOLDER...` stores the
records of runs of base-to-novel, a row each, and writes the table of recipes/study/TABLES.md; without any
folder it writes the table alone. The runs, for N from 1 to 20 and from 1 to 10:

    dear roles show discovered --variant shuffled --seed N --out shuffled-N.json
    dear run base-to-novel --data world --methods dear+ --seeds 1 --roles shuffled-N.json --out shuffled-N
    dear roles show discovered --variant random --seed N --out random-N.json
    dear run base-to-novel --data world --methods dear+ --seeds 1 --roles random-N.json --out random-N

Run it in the root of the repository.
"""

import argparse
import re
from collections.abc import Sequence
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from statistics import fmean

from dear.data.world.tasks import downstream_names
from dear.errors import DataError
from dear.evaluation.records import read_record
from dear.report.intervals import paired
from tools import end_with
from tools.document import with_table
from tools.measurements import (
    FILE,
    TABLES,
    Measurement,
    Results,
    read_measurements,
    write_measurements,
)

CONTROLS, NAME = Path("docs/measured/role_controls.csv"), "role-controls"
METHOD, SEED = "dear+", 1
KINDS = ("shuffled", "random")


def control_of(path: Path) -> Measurement:
    """A record's measurement, under the name of its role table, such as "shuffled 3". Raises DataError for a
    record without such a table.
    """
    record = read_record(path)
    source = re.match(rf"({'|'.join(KINDS)}) \(seed (\d+)\)", (record["roles"] or {"source": ""})["source"])
    if source is None:
        raise DataError(f"{path}: its role table is neither shuffled nor random.")
    return replace(Measurement.of(record), method=f"{source[1]} {source[2]}")


def role_controls(controls: Sequence[Measurement], measurements: Sequence[Measurement]) -> str:
    """One row for the roles, and one for each kind of control: means over its tables, with the range; the
    difference to the roles over tasks; how many tables reach the roles.
    """
    tasks = downstream_names()
    roles = [run for run in measurements if (run.method, run.seed) == (METHOD, SEED)]
    results = Results([*roles, *controls], tasks)
    measures = {
        "HM": (attrgetter("base"), attrgetter("novel"), attrgetter("hm")),
        "joint HM": (attrgetter("joint_base"), attrgetter("joint_novel"), attrgetter("joint_hm")),
    }
    head = [f"{name} | minus roles | tables not below roles" for name in measures]
    lines = [f"| roles | tables | {' | '.join(head)} |", "| --- | ---: |" + " ---: |" * 6]
    for kind in ("discovered", *KINDS):
        names = [name for name in results.by_method if name.startswith(kind)] or [METHOD]
        cells = []
        for base, novel, hm in measures.values():
            means = [results.hm(name, base, novel) for name in names]
            if names == [METHOD]:
                cells += [f"{means[0]:.1f}", "", ""]
                continue
            by_task = [
                fmean(column) for column in zip(*(results.by_task(name, hm) for name in names), strict=True)
            ]
            difference, width = paired(by_task, results.by_task(METHOD, hm))
            reached = sum(mean >= results.hm(METHOD, base, novel) for mean in means)
            cells += [f"{fmean(means):.1f} ({min(means):.1f} to {max(means):.1f})"]
            cells += [f"{difference:+.1f} ± {width or 0:.1f}", str(reached)]
        lines.append(f"| {kind} | {len(names)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Add records, and write the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", type=Path, nargs="*", help="folders of run records")
    controls = {run.run: run for run in read_measurements(CONTROLS)} if CONTROLS.exists() else {}
    for folder in parser.parse_args().folders:
        controls |= {(run := control_of(path)).run: run for path in sorted(folder.glob("*.json"))}
    write_measurements(controls.values(), CONTROLS)
    table = role_controls(read_measurements(CONTROLS), read_measurements(FILE))
    TABLES.write_text(with_table(TABLES.read_text(encoding="utf-8"), NAME, table), encoding="utf-8")


if __name__ == "__main__":
    end_with(main)
