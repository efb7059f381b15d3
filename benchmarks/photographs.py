"""The photographs of docs/choose.md: what `dear fit` chooses with few images, beside three methods by name.

    DEAR_DATA=FOLDER python -m benchmarks.photographs      # FOLDER has caltech-101, as docs/reproduce.md says

Each fit gets 1 to 16 images of each of the 100 classes, with the features of `lite`, which the cache folder
keeps, and is tested on the test images of the benchmark. It takes about half an hour on one core. Rows of
these methods in docs/measured/photographs.csv are replaced; `python -m benchmarks.study` writes the table.
"""

import csv
from itertools import product
from pathlib import Path

import dear
from dear.methods.registry import AUTO

RESULTS = Path(__file__).parents[1] / "docs/measured/photographs.csv"
METHODS = ("dear+", "linear-probe", "ensemble", AUTO)
SHOTS, SEEDS = (1, 2, 4, 8, 16), (1, 2, 3)
CHOSEN = "dear fit"


def measure(method: str, shots: int, seed: int) -> dict[str, object]:
    """The row of a fit."""
    options = {"model": "lite", "method": method, "shots": shots, "seed": seed}
    bundle = dear.fit("caltech101", review=False, refuse=0, verbose=False, **options)
    assert bundle.scores is not None
    name, takes = (CHOSEN, bundle.method) if method == AUTO else (method, "")
    row = {"method": name, "shots": shots, "seed": seed}
    row |= {"accuracy": f"{100 * bundle.scores.accuracy:.6g}", "takes": takes}
    return row | {"code": bundle.training.environment["code"]}


def main() -> None:
    with RESULTS.open(encoding="utf-8", newline="") as file:
        kept = [row for row in csv.DictReader(file) if row["method"] not in (*METHODS, CHOSEN)]
    rows = list[dict[str, object]]()
    for seed, shots, method in product(SEEDS, SHOTS, METHODS):
        rows.append(measure(method, shots, seed))
        print(*rows[-1].values(), flush=True)
    rows.sort(key=lambda row: ([*METHODS[:3], CHOSEN].index(str(row["method"])), row["shots"], row["seed"]))
    with RESULTS.open("w", encoding="utf-8", newline="") as file:
        table = csv.DictWriter(file, [*rows[0]], lineterminator="\n")
        table.writeheader()
        table.writerows([*kept, *rows])


if __name__ == "__main__":
    main()
