"""Run records as the report reads them: check which may stand in one table, group, average over seeds."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from dear.data.sources.benchmarks import benchmarks
from dear.data.world.names import task_names
from dear.errors import DataError
from dear.evaluation.protocols import protocol_class
from dear.evaluation.schema import SCHEMA, part_of
from dear.methods.registry import METHODS
from dear.reading.typed import shown
from dear.training.settings import TrainSettings

if TYPE_CHECKING:
    from pandas import DataFrame

Record = Mapping[str, Any]

HALVES = ("base", "novel")
AVERAGE = "Average"
"""Title of the row or column that is the mean of the data sets: no data set has it alone."""
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
        raise DataError(
            f"{record_title(record)}: the {where} {read} {value!r} is not a fraction between 0 and 1"
        )
    return float(value)


def protocol(record: Record) -> str:
    """The record's protocol."""
    return str(part_of(record, "protocol"))


def method_label(record: Record) -> str:
    """The label of a column: the method, or "method (variant)"; a run with settings that were chosen for its
    targets, or one that saw more images than the labelled ones, says so there.
    """
    remarks = [
        str(record.get("variant") or ""),
        TUNED if tuned(record) else "",
        UNLABELLED if record.get("transductive") else "",
    ]
    remark, method = ", ".join(filter(None, remarks)), str(part_of(record, "method"))
    return f"{method} ({remark})" if remark else method


def tuned(record: Record) -> bool:
    """True if some targets were tested with settings that the method's authors chose for them."""
    return bool(record.get("tuned_on_targets"))


def data_set(record: Record) -> str:
    """The name of the record's data set."""
    return str(part_of(record, "dataset", "name"))


def class_count(record: Record) -> int | None:
    """How many classes the record's data set has; None for a record that does not say."""
    return len(part_of(record, "dataset").get("classes") or ()) or None


def data_set_title(record: Record) -> str:
    """The data set's display title, or its name."""
    return str(part_of(record, "dataset").get("title") or data_set(record))


def user_data_only(records: Iterable[Record]) -> bool:
    """True if all data sets are the user's: neither tasks of the Attribute World nor benchmarks, for which
    there is something published to compare with.
    """
    return not any(_is_public(dataset) for run in records for dataset in _data_sets(run))


def public_data_only(records: Iterable[Record]) -> bool:
    """True if no data set is the user's."""
    return all(_is_public(dataset) for run in records for dataset in _data_sets(run))


def benchmarks_only(records: Iterable[Record]) -> bool:
    """True if all data sets are benchmarks, beside which published numbers can stand."""
    return all(str(dataset.get("name")) in benchmarks() for run in records for dataset in _data_sets(run))


def _is_public(dataset: Mapping[str, Any]) -> bool:
    """True for a task of the Attribute World or a benchmark; tasks have no files, so a folder named like one
    is the user's.
    """
    name = str(dataset.get("name"))
    if name in task_names():
        return "left_out" not in dataset
    return name in benchmarks()


def record_title(record: Record) -> str:
    """How messages refer to a record."""
    return f"{method_label(record)} on {data_set(record)}, seed {record.get('seed')}"


def weights_of(records: Iterable[Record]) -> list[str]:
    """The distinct weight hashes of the records."""
    return [str(sha) for sha in distinct(part_of(record, "weights", "sha256") for record in records)]


def readable(records: Iterable[Record]) -> list[Record]:
    """The records as a list without duplicates (the same run may be in several folders), in the order of the
    table of methods: by the date of their papers.

    Raises:
        DataError: if there are none, or for one of another schema version.
    """
    by_run: dict[Any, Record] = {}
    for number, record in enumerate(records):
        if record.get("schema") != SCHEMA:
            raise DataError(
                f"a run record has schema {record.get('schema')!r}, this version reads schema {SCHEMA}; "
                "report it with the version of dear that wrote it"
            )
        # Rows of two ablations may be the same run: the same key with another variant.
        run = (record.get("key") or number, record.get("variant"))
        if by_run.setdefault(run, record).get("results") != record.get("results"):
            raise DataError(
                f"two records of one run have different results: {record_title(record)}; remove the wrong one"
            )
    if not by_run:
        raise DataError("there are no run records to report; run something first")
    order = {method: number for number, method in enumerate(METHODS)}
    titled = _with_distinct_titles([*by_run.values()])
    return sorted(titled, key=lambda record: order.get(record.get("method", ""), len(order)))


def _data_sets(record: Record) -> list[Mapping[str, Any]]:
    """What a record says of its data set and of its targets."""
    return [part_of(record, "dataset"), *(record.get("targets") or ())]


def _with_distinct_titles(records: Sequence[Record]) -> list[Record]:
    """The records with the name added to each title that several data sets share or that is the average's, to
    tell rows apart.

    Raises DataError if two titles with their names are the same.
    """
    names: dict[str, set[str]] = {}
    for dataset in (dataset for record in records for dataset in _data_sets(record)):
        names.setdefault(_title(dataset), set()).add(_name(dataset))
    by_use = {
        (name, title): f"{title} ({name})" if len(of_title) > 1 or title == AVERAGE else title
        for title, of_title in names.items()
        for name in of_title
    }
    owners: dict[str, str] = {}
    for (name, _), title in by_use.items():
        if owners.setdefault(title, name) != name:
            raise DataError(
                f"two data sets are both called {shown(title)}; rename one, or report them separately"
            )

    def titled(dataset: Mapping[str, Any]) -> Mapping[str, Any]:
        title = by_use[_name(dataset), _title(dataset)]
        return dataset if title == _title(dataset) else {**dataset, "title": title}

    return [
        {
            **record,
            "dataset": titled(part_of(record, "dataset")),
            "targets": [titled(target) for target in record.get("targets") or ()],
        }
        for record in records
    ]


def _name(dataset: Mapping[str, Any]) -> str:
    return str(dataset.get("name"))


def _title(dataset: Mapping[str, Any]) -> str:
    return str(dataset.get("title") or dataset.get("name"))


def checked(records: Iterable[Record]) -> list[Record]:
    """The records of one protocol as a list, after checking that they can be combined in one table.

    Raises:
        DataError: if there are none; for another schema version, or several protocols; if weights or the
            source of a transfer differ; if one data set has two identities, or one method several numbers of
            shots (unless the table has a column for each), settings, teachers, role tables or rules for the
            tested epoch; if two records are of the same run.
    """
    records = readable(records)
    _check_same(records, protocol, "protocols")
    kind = protocol_class(protocol(records[0]))
    _check_same(records, lambda record: part_of(record, "weights", "sha256"), "weights")
    data_sets = [{"dataset": dataset} for record in records for dataset in _data_sets(record)]
    _check_same(data_sets, lambda use: use["dataset"].get("identity"), "data", data_set)
    if kind().trained_on is not None:
        _check_same(records, data_set, "sources")
    _check_same(records, _role_source, "role tables", method_label)
    _check_role_tables(records)
    _check_same(
        records, lambda record: (record.get("selection") or {}).get("rule"), "rules of --select", method_label
    )
    if not kind.several_shots:
        _check_same(records, lambda record: record.get("shots"), "numbers of shots", method_label)
    _check_same(records, lambda record: settings_of(record, "train"), "training", method_label)
    # A method may be published with other settings for each data set, but not for each seed.
    for runs in grouped(records, data_set).values():
        _check_same(runs, lambda record: settings_of(record, "method"), "settings", method_label)
        _check_same(runs, _teacher, "teachers", method_label)
    known: set[tuple[str, str, Any, Any]] = set()
    for record in records:
        run = (method_label(record), data_set(record), record.get("seed"), record.get("shots"))
        if run in known:
            raise DataError(
                f"two records of one run: {record_title(record)}; remove one, or report them separately"
            )
        known.add(run)
    return records


def settings_of(record: Record, part: str) -> dict[str, Any]:
    """The settings of a record: those of its "method", or of "train". A setting that was added after the run
    has its default, as in the run's key; {} if the record does not tell, or for an unknown method.
    """
    settings = (record.get("settings") or {}).get(part)
    if settings is None:
        return {}
    return {**_defaults(part, record.get("method", "")), **settings}


def _defaults(part: str, method: str) -> dict[str, Any]:
    if part == "train":
        return asdict(TrainSettings())
    return asdict(METHODS[method].settings()) if method in METHODS else {}


def _teacher(record: Record) -> dict[str, Any]:
    """The teacher and its settings, without its epochs, which each run has of its own."""
    return {key: fact for key, fact in (record.get("teacher") or {}).items() if key != "train"}


def _role_source(record: Record) -> str | None:
    """The source of the roles, ignoring the seed they were shuffled with."""
    source = (record.get("roles") or {}).get("source")
    return source and re.sub(r"\(seed \d+\)", "", str(source))


def _check_role_tables(records: Sequence[Record]) -> None:
    """Raise DataError if runs of one method have different role tables of one source, which says neither
    weights nor data in full. A source that names a seed, as that of shuffled roles, has a table a seed.
    """
    with_table = [record for record in records if (record.get("roles") or {}).get("table")]
    for of_source in grouped(with_table, lambda record: str(record["roles"]["source"])).values():
        for runs in grouped(of_source, method_label).values():
            heads = _head_roles(runs[0])
            others = [run for run in runs if _head_roles(run) != heads]  # equal ones need no closer look
            _check_same([runs[0], *others], _role_by_head, "role tables", method_label)


def _head_roles(record: Record) -> Any:
    table = record["roles"]["table"]
    return table.get("attributes"), table.get("heads")


def _role_by_head(record: Record) -> dict[str, Any]:
    """What a run depends on in its role table: the attributes in order, and each head's role, attribute and
    shares.
    """
    attributes, heads = _head_roles(record)
    facts = {"attributes": attributes}
    for head in heads or ():
        title = f"layer {head.get('layer')} head {head.get('head')}"
        facts[title] = " ".join(filter(None, [head.get("role"), head.get("attribute")]))
        facts[f"the shares of {title}"] = head.get("share") or {}
    return facts


def _check_same(
    records: Sequence[Record],
    value: Callable[[Record], Any],
    what: str,
    group_of: Callable[[Record], str] = lambda _: "",
) -> None:
    """Raise DataError if records of one group have different values."""
    for group, runs in grouped(records, group_of).items():
        values = distinct(value(run) for run in runs)
        if len(values) > 1:
            where, difference = f" of {group}" if group else "", _difference(values)
            raise DataError(f"the records{where} mix different {what} ({difference}); report them separately")


def _difference(values: Sequence[Any]) -> str:
    """A short description of how values differ: for mappings, the first key whose value differs."""
    first, second = values[0], values[1]
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        for key in dict.fromkeys([*first, *second]):
            if first.get(key) != second.get(key):
                return f"{key}: {_difference([first.get(key), second.get(key)])}"
    return ", ".join(str(item)[:40] for item in values)


def grouped(records: Iterable[Record], key: Callable[[Record], str]) -> dict[str, list[Record]]:
    """Records by key, in the order of first appearance."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(key(record), []).append(record)
    return groups


def distinct(values: Iterable[Any]) -> list[Any]:
    """The distinct values in order of first appearance; they may be lists and mappings."""
    unique: dict[Any, Any] = {}
    for value in values:
        unique.setdefault(_hashable(value), value)
    return [*unique.values()]


def _hashable(value: Any) -> Any:
    """A value that is equal to another's if the values are."""
    if isinstance(value, Mapping):
        return frozenset((key, _hashable(entry)) for key, entry in value.items())
    return tuple(map(_hashable, value)) if isinstance(value, list | tuple) else value


def distinct_by_key(mappings: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Key -> the distinct values that some mappings have, at last None if not all of them have the key."""
    values: dict[str, list[Any]] = {}
    for mapping in mappings:
        for key, value in mapping.items():
            values.setdefault(key, []).append(value)
    return {
        key: distinct([*of_key, *([None] if len(of_key) < len(mappings) else [])])
        for key, of_key in values.items()
    }


def runs_frame(records: Iterable[Record]) -> "DataFrame":
    """The accuracies of some runs as one long table: a row for each run, part of its results ("base",
    "targets NAME", "joint novel" ...) and metric; values are fractions.
    """
    from pandas import DataFrame

    rows = [
        {
            "protocol": protocol(record),
            "method": str(part_of(record, "method")),
            "variant": record.get("variant"),
            "backbone": part_of(record, "weights").get("model"),
            "weights": part_of(record, "weights").get("pretrained"),
            "data set": data_set(record),
            "classes": class_count(record),
            "seed": record.get("seed"),
            "shots": record.get("shots"),
            "part": part,
            "metric": metric,
            "value": value,
        }
        for record in records
        for part, metric, value in _shares(record["results"])
    ]
    return DataFrame(rows)


def _shares(results: Mapping[str, Any], *path: str) -> Iterator[tuple[str, str, float]]:
    """Part, metric and value of all numbers in a record's results; accuracies of classes are left out."""
    for name, value in results.items():
        if isinstance(value, Mapping) and name not in ("per_class", "precision", "chance"):
            yield from _shares(value, *path, name)
        elif path and isinstance(value, int | float):
            yield " ".join(path), name, float(value)
