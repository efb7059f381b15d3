"""Run records as the report reads them: those of a folder, their labels, which of them may stand in one
table, and all their numbers as one long table, from which every other is made.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from pandas import DataFrame

from dear.data.sources.benchmarks import benchmarks
from dear.errors import DataError
from dear.evaluation.protocols import PROTOCOLS
from dear.evaluation.records import SCHEMA, is_record_name, part_of, read_record
from dear.evaluation.resolve import MethodSetup, resolve
from dear.limits import LimitError
from dear.methods.registry import METHODS
from dear.reading.files import ReadingError, walk_folders
from dear.reading.plain import read_json
from dear.report.choices import describe_choices, describe_chosen, with_all_tried
from dear.training.settings import TrainSettings, used_training

Record = Mapping[str, Any]
Value = TypeVar("Value")

AVERAGE = "Average"
"""Title of the row or column that is the mean of the data sets: no data set has it alone."""
CHANCE = "chance"
"""Label of a row or column: the accuracy of guessing among the candidate classes."""
UNLABELED = "sees unlabeled images of all classes"
APART = "make the runs of each with another --out and report each folder"
"""What to do about runs that cannot be in one report."""
LABELED = ("settings", "teachers", "role tables")
"""What an entry of a recipe can have of its own, with a label."""


def read_folder(folder: Path) -> list[Record]:
    """All run records in a folder and its subfolders, each with the path of its ``predictions`` if there are
    any.

    A file with the name of a run's record must be one. Any other file is a record if it holds a JSON object
    with the number of a schema and the name of a protocol, and is ignored if it cannot be read, such as a
    link or settings with comments. Hidden subfolders belong to other programs and are not entered.

    Raises:
        DataError: if there is no such folder, no record in it, or a damaged one; for a link with the name of
            a record: whoever made it would choose among the user's files.
    """
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder: give the one that contains the run records.")
    records = [record for path in sorted(_json_files(folder)) if (record := _record_in(path)) is not None]
    if not records:
        raise DataError(f"there is no run record in {folder}: run something with --out {folder} first.")
    return records


def _json_files(folder: Path) -> Iterator[Path]:
    """The JSON files in a folder and its subfolders, but the hidden ones."""
    for parent, _, names in walk_folders(folder):
        yield from (path for path in (parent / name for name in names) if path.suffix == ".json")


def _record_in(path: Path) -> Record | None:
    """The record in a file, None if it is another file. Raises DataError for a damaged record."""
    if not is_record_name(path.name):
        try:
            content: Any = read_json(path, file_names=True)
        except (ReadingError, LimitError):
            return None
        kinds = {"schema": int, "protocol": str}
        if not isinstance(content, dict) or not all(isinstance(content.get(k), kinds[k]) for k in kinds):
            return None
    record, predictions = read_record(path), path.with_suffix(".npz")
    return record | {"predictions": predictions} if predictions.exists() else record


def protocol(record: Record) -> str:
    """The record's protocol."""
    return str(part_of(record, "protocol"))


def method_label(record: Record) -> str:
    """The label of a column: the method, or "method (variant)"; a run that saw more images than the labeled
    ones says so there. A method outside the package has the title that its class declares.
    """
    remarks = [
        str(record.get("variant") or ""),
        UNLABELED if record.get("transductive") else "",
    ]
    remark, method = ", ".join(filter(None, remarks)), str(record.get("title") or part_of(record, "method"))
    return f"{method} ({remark})" if remark else method


def deviation_notes(records: Iterable[Record]) -> list[str]:
    """A note that names the packaged methods that the user ran with other settings than their authors, and
    these.
    """
    changed = dict[str, dict[str, Any]]()
    for record in records:
        if deviations := deviations_of(record):
            changed.setdefault(method_label(record), {}).update(deviations)
    by_change = grouped(
        changed, lambda label: ", ".join(f"{name} {value}" for name, value in changed[label].items())
    )
    methods = [f"{', '.join(labels)} ({change})" for change, labels in by_change.items()]
    return [f"Not with the settings of their authors: {'; '.join(methods)}."] if methods else []


def choice_notes(records: Iterable[Record]) -> list[str]:
    """A note that says what validation images chose in the runs of each method that had a choice."""
    by_label = grouped(records, method_label)
    choices = [*filter(None, (describe_choices(label, runs) for label, runs in by_label.items()))]
    return [f"Chosen on validation images, in each run: {'. '.join(choices)}."] if choices else []


def deviations_of(record: Record) -> dict[str, Any]:
    """The settings of a run that the user set and its method's authors have otherwise, by name; those of a
    variant are told by its label, and where no step was taken, those of steps change nothing. {} for a class
    outside the package: only its user knows its authors, and a report does not import it.
    """
    overrides, method = record.get("overrides") or {}, record.get("method", "")
    if method not in METHODS or METHODS[method].module or not any(overrides.values()):
        return {}
    resolved = resolve(
        PROTOCOLS[protocol(record)](), MethodSetup(method), data_set(record), record.get("shots") or 0
    )
    parts = {"train": _used(asdict(resolved.training), record)}
    if not record.get("variant"):
        parts["method"] = asdict(resolved.method)
    return {
        name: value
        for part, authors in parts.items()
        for name, value in (overrides.get(part) or {}).items()
        if name in authors and value != authors[name]
    }


def data_set(record: Record) -> str:
    """The name of the record's data set."""
    return str(part_of(record, "dataset", "name"))


def data_set_title(record: Record) -> str:
    """The data set's display title, or its name."""
    return str(part_of(record, "dataset").get("title") or data_set(record))


def record_title(record: Record) -> str:
    """How messages refer to a record."""
    return f"{method_label(record)} on {data_set(record)}, seed {record.get('seed')}"


def data_sets_of(record: Record) -> list[Mapping[str, Any]]:
    """What a record says of its data set and of its targets."""
    return [part_of(record, "dataset"), *(record.get("targets") or ())]


def is_benchmark(dataset: Mapping[str, Any]) -> bool:
    """True for a benchmark, beside which published numbers can stand."""
    return str(dataset.get("name")) in benchmarks()


def runs_frame(records: Iterable[Record]) -> DataFrame:
    """All numbers of some runs as one long table: a row for each run, part of its results ("base",
    "targets NAME", "joint novel" ...) and metric; values are fractions. ``label`` and ``title`` are those of
    the method and the data set in other tables.
    """
    rows = [
        {
            "protocol": protocol(record),
            "method": str(part_of(record, "method")),
            "variant": record.get("variant"),
            "backbone": part_of(record, "weights").get("model"),
            "weights": part_of(record, "weights").get("pretrained"),
            "data set": data_set(record),
            "classes": len(part_of(record, "dataset").get("classes") or ()) or None,
            "seed": record.get("seed"),
            "shots": record.get("shots"),
            "part": part,
            "metric": metric,
            "value": value,
            "chosen": describe_chosen(record) or None,
            "label": method_label(record),
            "title": data_set_title(record),
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
    titled = _with_distinct_titles(_with_distinct_names([*by_run.values()]))
    return sorted(titled, key=lambda record: order.get(record.get("method", ""), len(order)))


def _with_distinct_names(records: Sequence[Record]) -> list[Record]:
    """The records, without the title of a method that is also that, or the name, of another method."""
    methods = grouped(records, lambda record: record.get("title") or record.get("method"))

    def is_shared(title: str) -> bool:
        return title in METHODS or len({record.get("method") for record in methods[title]}) > 1

    return [
        {**record, "title": None} if record.get("title") and is_shared(record["title"]) else record
        for record in records
    ]


def _with_distinct_titles(records: Sequence[Record]) -> list[Record]:
    """The records with a title for each data set, to which the name is added where several share a title or
    it is the average's, to tell rows apart.
    """
    told = [dataset for record in records for dataset in data_sets_of(record)]
    names = grouped(told, lambda dataset: str(dataset.get("title") or dataset["name"]))

    def titled(dataset: Mapping[str, Any]) -> Mapping[str, Any]:
        title = str(dataset.get("title") or dataset["name"])
        ambiguous = title == AVERAGE or len({same["name"] for same in names[title]}) > 1
        return {**dataset, "title": f"{title} ({dataset['name']})" if ambiguous else title}

    return [
        {**record, "dataset": titled(record["dataset"]), "targets": [*map(titled, data_sets_of(record)[1:])]}
        for record in records
    ]


def checked(records: Iterable[Record]) -> list[Record]:
    """The records of one protocol as a list, after checking that they can be combined in one table.

    Raises:
        DataError: if there are none; for another schema version, several protocols, or a missing number; if
            weights or the source of a transfer differ; if one data set has two identities, or one method
            several numbers of shots (unless the table has a column for each), settings, teachers, role tables
            or rules for the tested epoch; if two records are of the same run.
    """
    records = readable(records)

    def check(what: str, value: Callable[[Any], Any], group_of: Callable[[Any], str] = lambda _: "") -> None:
        for group, same in grouped(records, group_of).items():
            _check_same(what, map(value, same), group)

    def column_and_row(run: Record) -> str:
        return f"{method_label(run)} on {data_set(run)}"

    def source_of_roles(run: Record) -> str:
        return str((run.get("roles") or {}).get("source"))

    check("protocols", protocol)
    kind = PROTOCOLS[protocol(records[0])]()
    for record in records:
        for part in kind.scored:
            if not 0 <= (share := part_of(record, "results", part, "accuracy")) <= 1:
                raise DataError(f"{record_title(record)}: the {part} accuracy {share!r} is not a fraction")
    check("weights", lambda run: part_of(run, "weights", "sha256"))
    uses = [dataset for record in records for dataset in data_sets_of(record)]
    for name, same in grouped(uses, lambda dataset: dataset["name"]).items():
        _check_same("data", (dataset.get("identity") for dataset in same), name)
    if kind.trained_on is not None:
        check("sources", data_set)
    # That of shuffled roles names the seed that they were shuffled with, and has a table for each.
    check("role tables", lambda run: re.sub(r"\(seed \d+\)", "", source_of_roles(run)), method_label)
    check("role tables", _roles_by_head, lambda run: f"{method_label(run)} with roles {source_of_roles(run)}")
    check("rules of --select", lambda run: (run.get("selection") or {}).get("rule"), method_label)
    if not kind.several_shots:
        check("numbers of shots", lambda run: run.get("shots"), method_label)
    for method, runs in grouped(records, method_label).items():
        if len(sources := grouped(runs, lambda run: run.get("source", ""))) > 1:
            keys = " and ".join(", ".join(run["key"][:8] for run in of) for of in sources.values())
            raise DataError(
                f"the records of {method} are of {len(sources)} versions of its code, in files that end in "
                f"{keys}: remove the old ones, or {APART}."
            )
    check("training", lambda run: with_all_tried(settings_of(run, "train"), run, "train"), method_label)
    # A method may be published with other settings for each data set, but not for each seed.
    check("settings", lambda run: with_all_tried(settings_of(run, "method"), run, "method"), column_and_row)
    check("teachers", _teacher, column_and_row)
    for runs in grouped(records, lambda run: (record_title(run), run.get("shots"))).values():
        if len(runs) > 1:
            raise DataError(f"two records of one run: {record_title(runs[0])}; remove one, or {APART}.")
    return records


def settings_of(record: Record, part: str) -> dict[str, Any]:
    """The settings of a record: those of its "method", or of "train". A setting that was added after the run
    has its default, as in the run's key; {} if the record does not tell, or for an unknown method.
    """
    settings, method = (record.get("settings") or {}).get(part), METHODS.get(record.get("method", ""))
    if settings is None:
        return {}
    if part == "train":
        return _used({**asdict(TrainSettings()), **settings}, record)
    return {**(asdict(method.settings()) if method else {}), **settings}


def _used(training: Mapping[str, Any], record: Record) -> dict[str, Any]:
    """Those of some settings of training that changed a run."""
    declared = METHODS.get(record.get("method", ""))
    took_steps = "train" not in record or bool((record["train"] or {}).get("epochs"))
    return used_training(training, steps=took_steps, images=declared is None or declared.trains is not None)


def _teacher(record: Record) -> dict[str, Any]:
    """The teacher and its settings, without its epochs, which each run has of its own."""
    return {key: fact for key, fact in (record.get("teacher") or {}).items() if key != "train"}


def _roles_by_head(record: Record) -> dict[str, Any]:
    """What a run depends on in its role table: the attributes in order, and each head's role, attribute and
    shares.
    """
    table = (record.get("roles") or {}).get("table") or {"heads": ()}

    def in_words(head: Mapping[str, Any]) -> str:
        shares = ", ".join(f"{concept} {share:g}" for concept, share in (head.get("share") or {}).items())
        return " ".join(filter(None, [head["role"], head.get("attribute"), shares and f"({shares})"]))

    heads = {f"layer {head['layer']} head {head['head']}": in_words(head) for head in table["heads"]}
    return {"attributes": ", ".join(table.get("attributes") or ()), **heads}


def _check_same(what: str, values: Iterable[Any], group: str) -> None:
    """Raise DataError if the values of a group of records differ."""
    different = distinct(values)
    if len(different) < 2:
        return
    path, (first, second, *_) = "", different
    while isinstance(first, Mapping) and isinstance(second, Mapping):  # down to the first that differs
        key = next(key for key in {**first, **second} if first.get(key) != second.get(key))
        path, first, second = f"{path}{key}: ", first.get(key), second.get(key)
    where = f" of {group}" if group else ""
    label = "; for one report, give each a label in a recipe (docs/reproduce.md#recipes)"
    raise DataError(
        f"the records{where} mix different {what} ({path}{_shortened(first)}, {_shortened(second)}): "
        f"{APART}{label if what in LABELED else ''}."
    )


def _shortened(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 80 else f"{text[:40]} ... {text[-30:]}"


def grouped(values: Iterable[Value], key: Callable[[Value], Any]) -> dict[Any, list[Value]]:
    """Values by key, in the order of first appearance."""
    groups: dict[Any, list[Value]] = {}
    for value in values:
        groups.setdefault(key(value), []).append(value)
    return groups


def distinct(values: Iterable[Any]) -> list[Any]:
    """The distinct values in order of first appearance; they may be lists and mappings."""
    unique: list[Any] = []
    for value in values:
        if value not in unique:
            unique.append(value)
    return unique


def distinct_by_key(mappings: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Key -> the distinct values that some mappings have, at last None if not all of them have the key."""
    keys = dict.fromkeys(key for mapping in mappings for key in mapping)
    return {
        key: distinct([m[key] for m in mappings if key in m] + [None] * any(key not in m for m in mappings))
        for key in keys
    }
