"""The paper's ablations of DeAR by name: each is a list of plans, with one table row per plan. Light to
import because the report uses it too.
"""

import json
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from dear.errors import SettingsError, UnknownNameError
from dear.evaluation.plan import Plan
from dear.methods.declaration import MethodSettings
from dear.methods.registry import METHODS
from dear.reading.typed import typed

METHOD = "dear"
"""The method whose paper the ablations come from: they vary its settings and its role mask."""


@dataclass(frozen=True)
class AblationRow:
    """A row: the variant whose runs it shows (None is DeAR itself) and which of their accuracies it shows."""

    label: str | None
    shown: str
    read: Literal["accuracy", "decoupled"]
    plan: dict[str, Any]


@dataclass(frozen=True)
class Ablation:
    """An ablation of DeAR."""

    name: str
    title: str
    rows: tuple[AblationRow, ...]


@cache
def ablations() -> dict[str, Ablation]:
    """All ablations by name."""
    content = json.loads(files("dear.evaluation").joinpath("ablations.json").read_text(encoding="utf-8"))
    return {
        name: Ablation(name, ablation["title"], tuple(map(_row, ablation["rows"])))
        for name, ablation in content.items()
    }


def ablation_plans(
    names: Iterable[str], settings: Any = None, *, without: Iterable[str] = ()
) -> tuple[Plan, ...]:
    """DeAR's plans for some ablations, without duplicates; the rows change ``settings`` (DeAR's defaults if
    None).

    Rows whose labels are in ``without`` are left out. Raises UnknownNameError for an unknown ablation or row,
    and SettingsError for one that is named twice, or for settings that an ablation varies: its rows would not
    match their labels.
    """
    ablation_names, left_out = tuple(names), tuple(without)
    labels = [row.label for ablation in ablations().values() for row in ablation.rows if row.label]
    _require_named_once("row", left_out, labels)
    _require_named_once("ablation", ablation_names, ablations())
    for name in ablation_names:
        _require_unset(ablations()[name], settings or _usual())
    rows = (row for name in ablation_names for row in ablations()[name].rows if row.label not in left_out)
    return tuple(dict.fromkeys(_plan(row, settings) for row in rows))


def _require_named_once(kind: str, names: Iterable[str], available: Collection[str]) -> None:
    """Raise UnknownNameError for a name that is not available, SettingsError for one that occurs twice."""
    for name, times in Counter(names).items():
        if name not in available:
            raise UnknownNameError(kind, name, available)
        if times > 1:
            raise SettingsError(f"the {kind} {name!r} is named {times:,} times: name it once.")


def _usual() -> MethodSettings:
    return METHODS[METHOD].settings()


def _require_unset(ablation: Ablation, settings: MethodSettings) -> None:
    """Raise SettingsError for a setting of the user's that an ablation varies."""
    varied = {name for row in ablation.rows for name in row.plan.get("settings", {})}
    for name in sorted(varied):
        if name in settings.set_by_user:
            raise SettingsError(
                f"{name} is {getattr(settings, name)!r}, but the ablation {ablation.name} varies it: "
                "omit the setting or the ablation."
            )


def _plan(row: AblationRow, settings: Any) -> Plan:
    options = dict(row.plan)
    if changes := options.pop("settings", {}):
        settings = settings or _usual()
        values = {name: getattr(settings, name) for name in settings.set_by_user} | changes
        settings = typed(values, METHODS[METHOD].settings, "ablations.json")
    label = row.label if row.label and not options else None
    return Plan(METHOD, settings=settings, label=label, **options)


def _row(row: dict[str, Any]) -> AblationRow:
    title = row.get("shown") or row["label"]
    return AblationRow(row["label"], title, row.get("read", "accuracy"), row["plan"])
