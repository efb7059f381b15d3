"""Run records as the report reads them: checked, grouped, and averaged over seeds. Schema 1."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from dear.errors import DataError

Record = Mapping[str, Any]

SCHEMA = 1
HALVES = ("base", "novel")


def field(record: Record, *path: str) -> Any:
    """The value at a path of keys.

    Raises:
        DataError: if the record lacks it.
    """
    value: Any = record
    for depth, key in enumerate(path, start=1):
        if not isinstance(value, Mapping) or key not in value:
            raise DataError(f"the run record lacks {'.'.join(path[:depth])!r}; write the record anew")
        value = value[key]
    return value


def accuracy(record: Record, half: str) -> float:
    """The accuracy on the base or the novel classes, a fraction.

    Raises:
        DataError: if it is missing or no fraction between 0 and 1.
    """
    value = field(record, "results", half, "accuracy")
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise DataError(f"{name(record)}: the {half} accuracy {value!r} is no fraction between 0 and 1")
    return float(value)


def method_label(record: Record) -> str:
    """What a column is called: the method, or "method (variant)"."""
    variant = record.get("variant")
    return f"{field(record, 'method')} ({variant})" if variant else str(field(record, "method"))


def data_set(record: Record) -> str:
    """The name of the record's data set."""
    return str(field(record, "dataset", "name"))


def data_set_title(record: Record) -> str:
    """The data set's title for people, or its name."""
    return str(field(record, "dataset").get("title") or data_set(record))


def name(record: Record) -> str:
    """How messages name a record."""
    return f"{method_label(record)} on {data_set(record)}, seed {record.get('seed')}"


def checked(records: Iterable[Record], protocol: str) -> list[Record]:
    """The records as a list, after making sure that their numbers may stand in one table.

    Raises:
        DataError: if there is none; for another schema version or protocol; where weights differ; where one
            data set has two identities or one method two numbers of shots; where two records are of one run.
    """
    found = list(records)
    if not found:
        raise DataError("there is no run record to report; run something first")
    for record in found:
        if record.get("schema") != SCHEMA:
            raise DataError(
                f"a run record has schema {record.get('schema')!r}, this version reads schema {SCHEMA}; "
                "report it with the version of dear that wrote it"
            )
        if field(record, "protocol") != protocol:
            raise DataError(f"{name(record)}: the protocol is {record['protocol']!r}, not {protocol!r}")
    _one_value(found, lambda _: "", lambda record: field(record, "weights", "sha256"), "weights")
    _one_value(found, data_set, lambda record: field(record, "dataset").get("identity"), "data")
    _one_value(found, method_label, lambda record: record.get("shots"), "numbers of shots")
    seen: set[tuple[str, str, Any]] = set()
    for record in found:
        run = (method_label(record), data_set(record), record.get("seed"))
        if run in seen:
            raise DataError(f"two records of one run: {name(record)}; remove one or name the variant")
        seen.add(run)
    return found


def grouped(records: Iterable[Record], key: Callable[[Record], str]) -> dict[str, list[Record]]:
    """Records by a key, keys in the order met."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(key(record), []).append(record)
    return groups


def distinct(values: Iterable[Any]) -> list[Any]:
    """The different values in the order met (values need not be hashable)."""
    found: list[Any] = []
    for value in values:
        if value not in found:
            found.append(value)
    return found


def mean_fusion_weights(records: Iterable[Record]) -> dict[str, dict[str, float]]:
    """Data set title -> feature -> fusion weight (a fraction), averaged over seeds; where there are any."""
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


def mean_losses(records: Iterable[Record]) -> dict[str, list[float]]:
    """Data set title -> loss of each epoch, averaged over seeds; runs without training are left out."""
    losses = {}
    for runs in grouped(records, data_set).values():
        curves: list[Sequence[Mapping[str, float]]] = [
            (run.get("train") or {}).get("epochs") or [] for run in runs
        ]
        length = min((len(curve) for curve in curves if curve), default=0)
        trained = [curve for curve in curves if curve]
        if length:
            losses[data_set_title(runs[0])] = [
                sum(float(curve[epoch]["loss"]) for curve in trained) / len(trained)
                for epoch in range(length)
            ]
    return losses


def _one_value(
    records: Sequence[Record], key: Callable[[Record], str], value: Callable[[Record], Any], what: str
) -> None:
    for group, runs in grouped(records, key).items():
        values = distinct(value(run) for run in runs)
        if len(values) > 1:
            where = f" of {group}" if group else ""
            shown = ", ".join(str(item)[:16] for item in values)
            raise DataError(f"the records{where} mix different {what} ({shown}); report them apart")
