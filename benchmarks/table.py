"""Write the tables and numbers of pages from benchmarks/results: python benchmarks/table.py [--check]

Each table is between the lines <!-- table: NAME --> and <!-- end -->; without a result it reads "Not
measured." A number in a sentence is between <!-- value: NAME ROW COLUMN --> and <!-- end -->, rows from 0;
the row "mean" is of a column of a CSV file.
The table "zoo" is of zoo.csv: the sets of `python -m benchmarks.zoo`, and the mean of each column. Those of
`python -m benchmarks.look_after` are of wrong_labels.csv and none_of_these.csv, those of
`python -m benchmarks.more_images` of unlabeled.csv and suggested.csv.
"""

import argparse
import csv
import json
import re
from collections.abc import Callable
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
from scipy.stats import betabinom, binom

from dear.stats import LEVEL, half_width, share_interval

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks/results"
PAGES = [
    *(
        ROOT / "docs" / name
        for name in ("choose.md", "look-after.md", "performance.md", "reproduce.md", "search.md")
    ),
    *(ROOT / name for name in ("README.md", "benchmarks/README.md", "benchmarks/zoo/README.md")),
]
PLACE = re.compile(r"(<!-- table: ([a-z_-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
VALUE = re.compile(r"(<!-- value: ([a-z_]+) (\d+|mean) ([^>]+?) -->).*?(<!-- end -->)")
RIVALS = ("logistic regression", "LDA", "means", "standardized means", "neighbors")
PHOTOGRAPHS = "caltech101"
KINDS: dict[str, Callable[[str], bool]] = {
    "drawings": lambda data: data != PHOTOGRAPHS,
    "photographs": lambda data: data == PHOTOGRAPHS,
}
LISTED = {
    "wrong of listed": "of the labels that `dear` lists, the share that is wrong",
    "listed of wrong": "of the wrong labels, the share that `dear` lists",
    "listed if none is wrong": "of all labels, the share that `dear` lists if no label is wrong",
}
HIDDEN = ("all seconds", "gap to naive")


def table(rows: list[dict[str, Any]]) -> list[str]:
    """Rows as lines of a Markdown table; the first row names the columns."""
    names = [name for name in rows[0] if name not in HIDDEN]
    lines = [names, ["---"] * len(names), *([_cell(row.get(name)) for name in names] for row in rows)]
    return [f"| {' | '.join(line)} |" for line in lines]


def written(name: str) -> str:
    """The table of a benchmark and the machine it was measured on."""
    if name in OTHERS:
        return OTHERS[name]()
    path = RESULTS / f"{name}.json"
    if not path.exists():
        return "Not measured.\n"
    result = json.loads(path.read_text(encoding="utf-8"))
    facts = [f"{key.replace('_', ' ')} {value}" for key, value in result.get("machine", {}).items()]
    if "matrix GFLOP/s" in result:
        facts.append(f"matrix product {result['matrix GFLOP/s']:.0f} GFLOP/s")
    settings = [f"{key} {value}" for key, value in result["settings"].items() if value not in (None, False)]
    on = f"Measured on: {', '.join(facts)}." if facts else "Counted by hand."
    lines = [*table(result["rows"]), "", f"{on} Settings: {', '.join(settings)}."]
    return "\n".join(lines) + "\n"


def written_zoo() -> str:
    """The table of the sets that `python -m benchmarks.zoo` has measured with `lite`."""
    with (RESULTS / "zoo.csv").open(encoding="utf-8") as file:
        results = [row for row in csv.DictReader(file) if row["model"] == "lite"]
    accuracies = ["dear fit", *RIVALS]

    def cells(row: dict[str, str]) -> dict[str, Any]:
        measured = [float(row[name]) for name in accuracies if row[name]]
        best = f"{max(measured):.1f}" if measured else ""
        promised = f"{row['promised']} ({row['low']} to {row['high']})" if row["promised"] else None
        return {
            "set": f"{row['set']}, {row['classes']} x {int(row['images']) // int(row['classes'])}",
            "`dear fit`": row["dear fit"] or row["failed"],
            "promised": promised,
            "holds": {True: "yes", False: "no", None: None}[is_kept(row)],
            **{name: f"**{row[name]}**" if row[name] == best else row[name] for name in RIVALS},
            "CPU s": row["CPU s"],
        }

    rows = [cells(row) for row in results]
    means = {f"`{name}`" if name == "dear fit" else name: mean_of(results, name) for name in accuracies}
    kept = [is_kept(row) for row in results if is_kept(row) is not None]
    total = {"set": f"mean of {len(results)}", "holds": f"{sum(kept)} of {len(kept)}", **means}
    rows.append(total | {"CPU s": mean_of(results, "CPU s")})
    counts = [count_right(row) for row in results if is_kept(row) is not None]
    expected = sum(chance_to_hold(*row) for row in counts)
    apart = [row["set"] for row in results if is_kept(row) is not None and is_apart(*count_right(row))]
    note = (
        "Even if every promised accuracy were exactly right, the accuracy that is measured on so few images "
        f"would be in the interval on only {expected:.1f} of {len(counts)} sets, on average. On {len(apart)} "
        f"of {len(counts)} sets ({', '.join(apart)}) the promise and the measured accuracy differ by more "
        "than chance (95%, beta-binomial)."
    )
    return "\n".join([*table(rows), "", note]) + "\n"


def read_rows(name: str) -> list[dict[str, str]]:
    """The rows of a CSV file of results."""
    with (RESULTS / f"{name}.csv").open(encoding="utf-8") as file:
        return [*csv.DictReader(file)]


def written_wrong_labels() -> str:
    """Means over the tasks of drawings, with intervals, beside the photographs."""
    rows = read_rows("wrong_labels")
    drawings = [row for row in rows if row["data"] != PHOTOGRAPHS]
    photographs = [row for row in rows if row["data"] == PHOTOGRAPHS]
    lines = []
    for column, what in LISTED.items():
        values = [float(row[column]) for row in drawings if row[column]]
        half = half_width(values)
        cells = {"": what, f"drawings, {len(drawings)} tasks": f"{mean(values):.1f} ± {half or 0:.1f}"}
        cells |= {"photographs": f"{float(photographs[0][column]):.1f}"} if photographs else {}
        lines.append(cells)
    return "\n".join(table(lines)) + "\n"


def written_none_of_these() -> str:
    """Shares of test images over tasks and draws, by the number of training images of a class."""
    rows, lines = read_rows("none_of_these"), []
    for each in sorted({int(row["each"]) for row in rows}):
        cells: dict[str, Any] = {"training images of each class": each}
        for what, is_of in KINDS.items():
            of = [row for row in rows if int(row["each"]) == each and is_of(row["data"])]
            known = [float(row["of the classes"]) for row in of]
            unknown = [float(row["of unknown classes"]) for row in of]
            if of:
                cells[f"{what}: of the classes (worst of {len(of)} draws)"] = (
                    f"{mean(known):.1f} ({max(known):.1f})"
                )
                cells[f"{what}: of unknown classes"] = f"{mean(unknown):.1f}"
        lines.append(cells)
    return "\n".join(table(lines)) + "\n"


def written_unlabeled() -> str:
    """Accuracy without and with images without labels, and the mean gain over tasks."""
    rows, lines = read_rows("unlabeled"), []
    for what, is_of in KINDS.items():
        for labeled in sorted({row["labeled"] for row in rows}):
            of = [row for row in rows if row["labeled"] == labeled and is_of(row["data"])]
            if of:
                gains = [float(row["with"]) - float(row["without"]) for row in of]
                lines.append(
                    {
                        "": f"{what}, {labeled} labeled images of each class",
                        "without them": f"{mean(float(row['without']) for row in of):.1f}",
                        "with them": f"{mean(float(row['with']) for row in of):.1f}",
                        "gain": _spread(gains),
                        "used in": f"{sum(int(row['used']) for row in of)} of {len(of)} fits",
                        "least gain": f"{min(gains):+.1f}",
                    }
                )
    return "\n".join(table(lines)) + "\n"


def written_suggested() -> str:
    """Accuracy after images were labeled that were suggested or drawn, and the mean difference over tasks."""
    rows, lines = read_rows("suggested"), []
    for what, is_of in KINDS.items():
        if of := [row for row in rows if is_of(row["data"])]:
            pairs = [(float(row["suggested"]), float(row["random"])) for row in of]
            lines.append(
                {
                    "": what,
                    "suggested": f"{mean(one for one, _ in pairs):.1f}",
                    "random": f"{mean(other for _, other in pairs):.1f}",
                    "difference": _spread([one - other for one, other in pairs]),
                }
            )
    return "\n".join(table(lines)) + "\n"


def _spread(values: list[float]) -> str:
    """The mean of differences, with half the width of its interval if there are enough."""
    half = half_width(values)
    return f"{mean(values):+.1f}" + ("" if half is None else f" ± {half:.1f}")


def count_right(row: dict[str, str]) -> tuple[int, int, int, int]:
    """Images that are right by the promise, of how many; kept-aside images that are right, of how many."""
    images, kept_aside = int(row["images"]), int(row["kept aside"])
    promised, measured = float(row["promised"]) / 100, float(row["dear fit"]) / 100
    return round(promised * images), images, round(measured * kept_aside), kept_aside


def chance_to_hold(promised: int, images: int, measured: int, kept_aside: int) -> float:
    """How likely Wilson's interval of the promised share holds the measured one, if both are of the same
    classifier and images vary by chance alone.
    """
    share, counts = (promised + measured) / (images + kept_aside), np.arange(kept_aside + 1)
    likely, chance = binom.pmf(counts, kept_aside, share), 0.0
    for number, weight in enumerate(binom.pmf(np.arange(images + 1), images, share)):
        low, high = share_interval(number, images)
        chance += weight * likely[(counts / kept_aside >= low) & (counts / kept_aside <= high)].sum()
    return float(chance)


def is_apart(promised: int, images: int, measured: int, kept_aside: int) -> bool:
    """Whether the measured share lies outside of 95% of what the promised one predicts: a beta-binomial
    distribution, from Jeffreys' prior.
    """
    predicted = betabinom(kept_aside, promised + 0.5, images - promised + 0.5)
    return bool(min(predicted.cdf(measured), predicted.sf(measured - 1)) < (1 - LEVEL) / 2)


def is_kept(row: dict[str, str]) -> bool | None:
    """Whether the measured accuracy of a set is in the promised interval; None without one."""
    if not (row["promised"] and row["dear fit"]):
        return None
    return float(row["low"]) <= float(row["dear fit"]) <= float(row["high"])


def mean_of(rows: list[dict[str, str]], name: str) -> str:
    """The mean of a column; a set that failed counts as 0."""
    return f"{mean(float(row[name] or 0) for row in rows):.1f}"


def value(name: str, row: str, column: str) -> str:
    """A number of a benchmark's result, as its table has it."""
    if row == "mean":
        with (RESULTS / f"{name}.csv").open(encoding="utf-8") as file:
            return mean_of([*csv.DictReader(file)], column)
    return _cell(json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))["rows"][int(row)][column])


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"
    return "-" if value is None else str(value)


OTHERS = {
    "zoo": written_zoo,
    "wrong_labels": written_wrong_labels,
    "none_of_these": written_none_of_these,
    "unlabeled": written_unlabeled,
    "suggested": written_suggested,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="only check whether the pages are up to date")
    options = parser.parse_args()
    for page in PAGES:
        before = page.read_text(encoding="utf-8")
        after = PLACE.sub(lambda found: f"{found[1]}{written(found[2])}{found[3]}", before)
        after = VALUE.sub(lambda found: f"{found[1]}{value(found[2], found[3], found[4])}{found[5]}", after)
        if not options.check:
            page.write_text(after, encoding="utf-8")
        elif before != after:
            raise SystemExit(f"{page.relative_to(ROOT)} is out of date: run python benchmarks/table.py")


if __name__ == "__main__":
    main()
