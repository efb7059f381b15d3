"""Ablations of DeAR by name, the paper's and three more (beta, first, mask-form): each is a list of setups,
with one table row per setup. Light to import because the report uses it too.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any, Literal

from dear.errors import SettingsError, UnknownNameError
from dear.evaluation.resolve import MethodSetup
from dear.reading.typed import typed

METHOD = "dear"
"""The method whose paper the ablations come from: they vary its settings and its role mask."""


@dataclass(frozen=True)
class AblationRow:
    """A row: the variant whose runs it shows (None is DeAR itself) and which of their accuracies it shows:
    with all features, by the class feature alone, or by it on the novel half alone.
    """

    label: str | None
    shown: str
    setup: dict[str, Any]
    read: Literal["accuracy", "decoupled", "novel-decoupled"] = "accuracy"


@dataclass(frozen=True)
class Ablation:
    """An ablation of DeAR."""

    name: str
    title: str
    rows: tuple[AblationRow, ...]


@cache
def ablations() -> dict[str, Ablation]:
    """All ablations by name, from ``ablations.json``."""
    content = json.loads(files("dear.evaluation").joinpath("ablations.json").read_text(encoding="utf-8"))
    for name, ablation in content.items():
        ablation["name"] = name
        ablation["rows"] = [{"shown": row["label"], **row} for row in ablation["rows"]]
    return typed(content, dict[str, Ablation], "ablations.json")


def ablation_setups(
    names: Iterable[str],
    settings: Mapping[str, Any] = MappingProxyType({}),
    *,
    without: Iterable[str] = (),
) -> tuple[MethodSetup, ...]:
    """DeAR's setups for some ablations, without duplicates; all have ``settings``, and those of their row.
    Rows whose labels are in ``without`` are left out. Raises UnknownNameError for an unknown ablation
    or row, and SettingsError for settings that an ablation varies: its rows would not match their labels.
    """
    names, without = [*names], [*without]
    labels = [row.label for ablation in ablations().values() for row in ablation.rows if row.label]
    for kind, requested, known in (("row", without, labels), ("ablation", names, [*ablations()])):
        if unknown := [name for name in requested if name not in known]:
            raise UnknownNameError(kind, unknown[0], known)
    for name in names:
        varied = {setting for row in ablations()[name].rows for setting in row.setup.get("settings", {})}
        for setting in sorted(varied & {*settings}):
            raise SettingsError(
                f"{setting} is {settings[setting]!r}, but the ablation {name} varies it: "
                "omit the setting or the ablation."
            )
    rows = [row for name in names for row in ablations()[name].rows if row.label not in without]
    return tuple(dict.fromkeys(_setup(row, settings) for row in rows))


def _setup(row: AblationRow, settings: Mapping[str, Any]) -> MethodSetup:
    """The setup of a row: it changes settings of the method, its role mask, or both."""
    options = dict(row.setup)
    settings = {**settings, **options.pop("settings", {})}
    label = row.label if row.label and not options else None  # a role mask names itself
    return MethodSetup(METHOD, settings, label=label, **options)
