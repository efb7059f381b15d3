"""The runs of the study, a row each in docs/measured: how records become rows, and means and differences of
rows. Accuracies are in percent.
"""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, TypeAlias

import pandas

from dear.errors import DataError
from dear.evaluation.protocols.base_to_novel import harmonic_mean
from dear.evaluation.records import part_of
from dear.report.records import (
    UNLABELED,
    Record,
    data_set,
    method_label,
    protocol,
    record_title,
    settings_of,
)
from dear.stats import half_width
from dear.training.settings import TrainSettings
from dear.world.names import downstream_names, packaged_json

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs/measured"
KEYS = {
    "base_to_novel": ("data", "method", "seed"),
    "class_counts": ("data", "method", "seed", "steps"),
    "few_shot": ("data", "method", "shots", "seed"),
    "role_controls": ("data", "method", "seed"),
    "variants": ("data", "method", "seed"),
}
"""The files of docs/measured that are collected, and the columns that tell their runs apart."""
HALVES = {
    "hm": ("base", "novel"),
    "hm_alone": ("base_alone", "novel_alone"),
    "joint": ("joint_base", "joint_novel"),
    "joint_alone": ("joint_base_alone", "joint_novel_alone"),
    "joint_switched": ("joint_base_switched", "joint_novel_switched"),
}
"""Harmonic means and what they are of: "joint" of all classes at once, "alone" of scores by the class
feature, "switched" with zero-shot scores of novel classes.
"""
CONTROL = re.compile(r"discovered|(shuffled|random) \d+")
"""Labels of `dear+` with the role table that the package has, and with others."""

Runs: TypeAlias = pandas.DataFrame
"""Rows of runs of base-to-novel, with a column for each measure of `HALVES` too."""


class NoRuns(Exception):
    """There are no rows to compute a number from: what was written before stays."""


def file_and_row(record: Record) -> tuple[str, dict[str, Any]]:
    """The file that a record belongs in, and its row there.

    Raises DataError for another protocol, for data sets that are no tasks of the Attribute World, and for a
    run with settings or shots of its own without a label, whose row would stand for the method's.
    """
    row: dict[str, Any] = {"data": data_set(record), "method": method_label(record)}
    tasks = packaged_json("tasks")
    if row["data"] not in {task["name"] for task in (*tasks["tasks"], *tasks["parts"])}:
        raise DataError(f"{record_title(record)}: it is no run on a task of the Attribute World.")
    end = {
        "parameters": record["trainable_parameters"],
        "seconds": round(record["seconds"]["train"] + record["seconds"]["test"]),
        "weights": record["weights"]["sha256"][:12],
        "code": record["environment"]["code"],
    }
    if protocol(record) == "few-shot":
        shots = {"shots": record["shots"], "seed": record["seed"]}
        return "few_shot", row | shots | {"accuracy": _percent(record, "all", "accuracy")} | end
    if protocol(record) != "base-to-novel":
        raise DataError(f"{record_title(record)}: the study has no runs of {protocol(record)}.")
    is_part = row["data"] not in (*downstream_names(), *downstream_names(size="large"))
    is_changed = any((record.get("overrides") or {}).values()) and not is_part
    if record["shots"] != 16 or (is_changed and not record.get("variant")):
        raise DataError(f"{record_title(record)}: it has other settings than the method, and no label.")
    row |= {"seed": record["seed"], "steps": count_steps(record)}
    for ending, metric in ("", "accuracy"), ("_alone", "decoupled"), ("_switched", "zero_shot_for_new"):
        for half in ("base", "novel"):
            if ending != "_switched":
                row[f"{half}{ending}"] = _percent(record, half, metric)
            row[f"joint_{half}{ending}"] = _percent(record, "joint", half, metric)
    if variant := record.get("variant"):
        if record["method"] == "dear+" and CONTROL.fullmatch(variant):
            return "role_controls", row | {"method": variant} | end
        return "variants", row | end
    return "class_counts" if is_part else "base_to_novel", row | end


def _percent(record: Record, *path: str) -> float:
    return round(100 * float(part_of(record, "results", *path)), 4)


def count_steps(record: Record) -> int:
    """The steps of a run's training; 0 for a method that takes none."""
    if not part_of(record, "train", "epochs"):
        return 0
    training = TrainSettings(**settings_of(record, "train"))
    images = len(part_of(record, "fewshot", "indices"))
    return training.total_steps(images, images // record["shots"], training.epoch_steps(images))


def collect(records: Iterable[Record]) -> dict[str, int]:
    """Add the rows of some records to the files, in place of the rows of the same runs; how many there are by
    file.

    Raises DataError, and writes nothing, for a record that is no run of the study, or of other weights than
    the rows that there are.
    """
    rows: dict[str, list[dict[str, Any]]] = {}
    for name, row in map(file_and_row, records):
        rows.setdefault(name, []).append(row)
    known = {weights for name in KEYS for weights in read(name).weights}
    new = {row["weights"] for of_file in rows.values() for row in of_file}
    if len(known | new) > 1 and new:
        raise DataError(f"the rows are of the weights {', '.join(known | new)}: they cannot be compared.")
    for name, of_file in rows.items():
        path, keys, added = FOLDER / f"{name}.csv", [*KEYS[name]], pandas.DataFrame(of_file)
        old = [pandas.read_csv(path)] if path.exists() else []
        table = pandas.concat([*old, added]).drop_duplicates(keys, keep="last").sort_values(keys)
        table.to_csv(path, index=False, lineterminator="\n")
    return {name: len(of_file) for name, of_file in rows.items()}


def read(name: str) -> Runs:
    """The rows of a file, none if it is not there."""
    path = FOLDER / f"{name}.csv"
    if not path.exists():
        return pandas.DataFrame(columns=[*KEYS[name], "weights", "code"])
    rows = pandas.read_csv(path)
    for measure, (base, novel) in HALVES.items():
        if base in rows:
            rows[measure] = [harmonic_mean(*pair) for pair in zip(rows[base], rows[novel], strict=True)]
    return rows


def read_photographs() -> Runs:
    """The runs on photographs, as those of few-shot learning on one task."""
    return pandas.read_csv(FOLDER / "photographs.csv").assign(data="caltech101")


def is_variant(label: str) -> bool:
    """True for the label of a variant, as it is of `method_label`."""
    return "(" in label.replace(f" ({UNLABELED})", "")


def complete(runs: Runs, tasks: Sequence[str], seeds: Sequence[int] = ()) -> Runs:
    """The runs on some tasks, without seeds that a method was not run with on all of them."""
    runs = runs[runs.data.isin(tasks) & (runs.seed.isin(seeds) | (not seeds))]
    counts = runs.groupby(["method", "seed"]).data.transform("nunique")
    return runs[counts == len({*tasks})]


def by_task(runs: Runs, measure: str) -> "pandas.Series[float]":
    """The mean over seeds of each task."""
    if runs.empty or runs[measure].isna().any():
        raise NoRuns(", ".join({*runs.method}))
    return runs.groupby("data")[measure].mean()


def mean(runs: Runs, measure: str) -> float:
    """The mean over tasks; a harmonic mean is that of two such means."""
    if measure in HALVES:
        return harmonic_mean(*(mean(runs, half) for half in HALVES[measure]))
    return fmean(by_task(runs, measure))


def difference(first: Runs, second: Runs, measure: str, of_second: str = "") -> tuple[float, float | None]:
    """The mean over tasks of the first minus the second, over the seeds that both have, and half the width of
    its interval over tasks.
    """
    seeds = {*first.seed} & {*second.seed}
    ones, others = (runs[runs.seed.isin(seeds)] for runs in (first, second))
    if not seeds:
        raise NoRuns("seeds that both have")
    differences = [*by_task(ones, measure) - by_task(others, of_second or measure)]
    return fmean(differences), half_width(differences)


def written_difference(found: tuple[float, float | None], sign: str = "+", decimals: int = 1) -> str:
    """A difference as it stands in a table: "+1.4 ± 0.8"."""
    value, half = found
    return f"{value:{sign}.{decimals}f}" + ("" if half is None else f" ± {half:.{decimals}f}")
