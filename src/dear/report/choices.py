"""What validation images chose in a run: values of settings, for tables and their notes."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from dear.text import plural

Record = Mapping[str, Any]
PARTS = {"method": "settings", "train": "train"}
"""The parts of a record's settings, and their names among what was tried."""


def chosen_values(record: Record) -> dict[str, Any]:
    """The values that were chosen, by the name of their setting; {} where none were to be chosen. Of equal
    accuracies on validation images, the first was taken.
    """
    tried: Sequence[Mapping[str, Any]] = (record.get("selection") or {}).get("tried") or ()
    if not tried:
        return {}
    best = max(tried, key=lambda candidate: float(candidate["val"]))
    return {name: value for part in PARTS.values() for name, value in (best.get(part) or {}).items()}


def describe_chosen(record: Record) -> str:
    """The chosen values in words: "tokens 4, lr 0.002"."""
    return ", ".join(f"{name} {value}" for name, value in chosen_values(record).items())


def with_all_tried(settings: Mapping[str, Any], record: Record, part: str) -> dict[str, Any]:
    """The settings of a part of a record with all values that were tried in place of the chosen ones: the
    runs of a table need these in common.
    """
    tried = (record.get("selection") or {}).get("tried") or ()
    names = dict.fromkeys(name for each in tried for name in each.get(PARTS[part]) or ())
    return {**settings, **{name: [each[PARTS[part]][name] for each in tried] for name in names}}


def describe_choices(label: str, records: Sequence[Record]) -> str:
    """What was chosen in the runs of a method, the most frequent first; "" where nothing was."""
    counts = Counter(filter(None, map(describe_chosen, records)))
    if not counts:
        return ""
    (first, count), *others = counts.most_common()
    parts = [f"{first} in {count} of {plural(counts.total(), 'run')}"]
    return f"{label}: {'; '.join([*parts, *(f'{values} in {of}' for values, of in others)])}"
