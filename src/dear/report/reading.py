"""Read run records for the report: check, group and average over seeds."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from dear.data.sources.benchmarks import benchmarks
from dear.data.world.names import task_names
from dear.errors import DataError
from dear.evaluation.protocols.registry import protocol_class
from dear.evaluation.schema import SCHEMA, part_of
from dear.methods.registry import METHODS

Record = Mapping[str, Any]

HALVES = ("base", "novel")
CHANCE = "chance"
"""Label of a row or column: the accuracy of guessing among the candidate classes."""
TUNED = "tuned on targets"
UNLABELLED = "sees unlabelled images of all classes"


def accuracy(record: Record, *part: str | int, read: str = "accuracy") -> float:
    """The accuracy on a part of the results (base, novel, all, source, targets NAME), as a fraction; ``read``
    "decoupled" is that of the class feature alone.

    Raises:
        DataError: if it is missing or not a fraction between 0 and 1.
    """
    value = part_of(record, "results", *part, read)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        where = " ".join(map(str, part))
        raise DataError(f"{name(record)}: the {where} {read} {value!r} is not a fraction between 0 and 1")
    return float(value)


def protocol(record: Record) -> str:
    """The record's protocol."""
    return str(part_of(record, "protocol"))


def method_label(record: Record) -> str:
    """The label of a column: the method, or "method (variant)"; a run with settings that were chosen for its
    targets, or one that saw more images than the labelled ones, says so there.
    """
    marks = [
        str(record.get("variant") or ""),
        TUNED if tuned(record) else "",
        UNLABELLED if record.get("transductive") else "",
    ]
    shown = ", ".join(filter(None, marks))
    return f"{part_of(record, 'method')} ({shown})" if shown else str(part_of(record, "method"))


def tuned(record: Record) -> bool:
    """Whether some targets were tested with settings that the method's authors chose for them."""
    return bool(record.get("tuned_on_targets"))


def data_set(record: Record) -> str:
    """The name of the record's data set."""
    return str(part_of(record, "dataset", "name"))


def classes_of(record: Record) -> int | None:
    """How many classes the record's data set has; None for a record that does not say."""
    return len(part_of(record, "dataset").get("classes") or ()) or None


def data_set_title(record: Record) -> str:
    """The data set's display title, or its name."""
    return str(part_of(record, "dataset").get("title") or data_set(record))


def of_own_data(records: Iterable[Record]) -> bool:
    """Whether all data sets are the user's own: neither tasks of the Attribute World nor benchmarks, for
    which there is something published to compare with.
    """
    known = {*task_names(), *benchmarks()}
    sets = [one for run in records for one in (part_of(run, "dataset"), *(run.get("targets") or ()))]
    return not any(str(one.get("name")) in known for one in sets)


def name(record: Record) -> str:
    """How messages refer to a record."""
    return f"{method_label(record)} on {data_set(record)}, seed {record.get('seed')}"


def readable(records: Iterable[Record]) -> list[Record]:
    """The records as a list without duplicates (the same run may be in several folders), in the order of the
    table of methods: by the date of their papers.

    Raises:
        DataError: if there are none, or for one of another schema version.
    """
    found: dict[Any, Record] = {}
    for number, record in enumerate(records):
        if record.get("schema") != SCHEMA:
            raise DataError(
                f"a run record has schema {record.get('schema')!r}, this version reads schema {SCHEMA}; "
                "report it with the version of dear that wrote it"
            )
        # Rows of two ablations may be the same run: the same key with another variant.
        run = (record.get("key") or number, record.get("variant"))
        other = found.setdefault(run, record)
        if other.get("results") != record.get("results"):
            raise DataError(
                f"two records of one run have different results: {name(record)}; remove the wrong one"
            )
    if not found:
        raise DataError("there are no run records to report; run something first")
    found = dict(zip(found, _with_distinct_titles([*found.values()]), strict=True))
    order = {method: place for place, method in enumerate(METHODS)}
    return sorted(found.values(), key=lambda record: order.get(record.get("method", ""), len(order)))


def _with_distinct_titles(records: Sequence[Record]) -> list[Record]:
    """The records with the name added to each title that several data sets share, to tell rows apart."""
    names: dict[str, set[str]] = {}
    for record in records:
        for one in [part_of(record, "dataset"), *(record.get("targets") or ())]:
            names.setdefault(str(one.get("title")), set()).add(str(one.get("name")))

    def titled(one: Mapping[str, Any]) -> Mapping[str, Any]:
        title = one.get("title")
        alone = title is None or len(names[str(title)]) == 1
        return one if alone else {**one, "title": f"{title} ({one.get('name')})"}

    return [
        {
            **record,
            "dataset": titled(record["dataset"]),
            "targets": [titled(one) for one in record.get("targets") or ()],
        }
        for record in records
    ]


def checked(records: Iterable[Record]) -> list[Record]:
    """The records of one protocol as a list, after checking that they can be combined in one table.

    Raises:
        DataError: if there are none; for another schema version, or several protocols; if weights or the
            source of a transfer differ; if one data set has two identities, or one method several numbers of
            shots (unless the table has a place for them), settings, role tables or rules for the tested
            epoch; if two records are of the same run.
    """
    found = readable(records)
    _one_value(found, lambda _: "", protocol, "protocols")
    kind = protocol_class(protocol(found[0]))
    _one_value(found, lambda _: "", lambda record: part_of(record, "weights", "sha256"), "weights")
    uses = [
        {"dataset": one} for run in found for one in (part_of(run, "dataset"), *(run.get("targets") or ()))
    ]
    _one_value(uses, data_set, lambda record: part_of(record, "dataset").get("identity"), "data")
    if kind().trained_on is not None:
        _one_value(found, lambda _: "", data_set, "sources")
    _one_value(found, method_label, _roles, "role tables")
    _one_value(
        found, method_label, lambda record: (record.get("selection") or {}).get("rule"), "rules of --select"
    )
    if not kind.several_shots:
        _one_value(found, method_label, lambda record: record.get("shots"), "numbers of shots")
    _one_value(found, method_label, lambda record: _settings(record).get("train"), "training")
    # A method may be published with other settings for each data set, but not for each seed.
    by_data = grouped(found, data_set)
    for runs in by_data.values():
        _one_value(runs, method_label, _settings, "settings")
    seen: set[tuple[str, str, Any, Any]] = set()
    for record in found:
        run = (method_label(record), data_set(record), record.get("seed"), record.get("shots"))
        if run in seen:
            raise DataError(f"two records of one run: {name(record)}; remove one, or report them separately")
        seen.add(run)
    return found


def _settings(record: Record) -> dict[str, Any]:
    return dict(record.get("settings") or {})


def grouped(records: Iterable[Record], key: Callable[[Record], str]) -> dict[str, list[Record]]:
    """Records by key, in the order of first appearance."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(key(record), []).append(record)
    return groups


def distinct(values: Iterable[Any]) -> list[Any]:
    """The distinct values in order of first appearance (values need not be hashable)."""
    found: list[Any] = []
    for value in values:
        if value not in found:
            found.append(value)
    return found


def mean_fusion_weights(records: Iterable[Record]) -> dict[str, dict[str, float]]:
    """Data set title -> feature -> fusion weight (a fraction), averaged over seeds, for runs with any."""
    weights = {}
    for runs in grouped(records, data_set).values():
        found: list[Mapping[str, float]] = [
            run["fusion_weights"] for run in runs if run.get("fusion_weights")
        ]
        if found:
            features = distinct(feature for run in found for feature in run)
            weights[data_set_title(runs[0])] = {
                feature: sum(run.get(feature, 0.0) for run in found) / len(found) for feature in features
            }
    return weights


def mean_curves(records: Iterable[Record], measure: str = "loss") -> dict[str, list[float]]:
    """Data set title -> a measure of each epoch ("loss", or "val": accuracy on validation images), averaged
    over seeds; runs without it are left out.
    """
    losses = {}
    for runs in grouped(records, data_set).values():
        curves: list[Sequence[Mapping[str, float]]] = [
            (run.get("train") or {}).get("epochs") or [] for run in runs
        ]
        trained = [curve for curve in curves if curve and all(measure in epoch for epoch in curve)]
        length = min(map(len, trained), default=0)
        if length:
            losses[data_set_title(runs[0])] = [
                sum(float(curve[epoch][measure]) for curve in trained) / len(trained)
                for epoch in range(length)
            ]
    return losses


def _roles(record: Record) -> str | None:
    """The source of the roles, ignoring the seed they were shuffled with."""
    source = (record.get("roles") or {}).get("source")
    return source and re.sub(r"\(seed \d+\)", "", str(source))


def _one_value(
    records: Sequence[Record], key: Callable[[Record], str], value: Callable[[Record], Any], what: str
) -> None:
    for group, runs in grouped(records, key).items():
        values = distinct(value(run) for run in runs)
        if len(values) > 1:
            where = f" of {group}" if group else ""
            shown = _different(values)
            raise DataError(f"the records{where} mix different {what} ({shown}); report them separately")


def _different(values: Sequence[Any]) -> str:
    """A short description of how values differ: for mappings, the first key whose value differs."""
    first, second = values[0], values[1]
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        for key in dict.fromkeys([*first, *second]):
            if first.get(key) != second.get(key):
                return f"{key}: {_different([first.get(key), second.get(key)])}"
    return ", ".join(str(item)[:40] for item in values)
