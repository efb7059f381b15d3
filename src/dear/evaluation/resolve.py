"""The settings that a plan runs with, and plans from plain values (of a recipe). Light to import: the one
place that knows how methods tell their settings.
"""

from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

from dear.data.settings import DataSettings
from dear.errors import SettingsError, UnknownNameError
from dear.evaluation.plan import Plan
from dear.methods.settings import DearSettings
from dear.training.settings import TrainSettings

_SETTINGS: Mapping[str, type[Any]] = {"dear": DearSettings}


def settings_class(method: str) -> type[Any] | None:
    """The dataclass of a method's settings; None for a method that has none."""
    return _SETTINGS.get(method)


def settings_of(plan: Plan, dataset: str) -> Any:
    """The settings that a plan runs with on a data set: its own, or the method's defaults; None if it has
    none.
    """
    del dataset  # no method's settings depend on it yet
    kind = settings_class(plan.method)
    return plan.settings if plan.settings is not None or kind is None else kind()


def training_of(plan: Plan, given: TrainSettings) -> TrainSettings:
    """The settings of training that a plan runs with: those that are given, the same for all methods."""
    del plan
    return given


def changed(method: str, settings: Any, changes: Mapping[str, Any]) -> Any:
    """A method's settings with some fields changed. Raises UnknownNameError for a field that it lacks,
    SettingsError for a method without settings or a value of the wrong type or range.
    """
    kind = settings_class(method)
    if not changes:
        return settings
    if kind is None:
        raise SettingsError(f"{method} has no settings, and {', '.join(changes)} is given.")
    return _replaced(settings if settings is not None else kind(), changes, f"setting of {method}")


def train_settings(values: Mapping[str, Any]) -> TrainSettings:
    """Settings of training from plain values. Raises UnknownNameError and SettingsError."""
    settings: TrainSettings = _replaced(TrainSettings(), values, "setting of training")
    return settings


def data_settings(values: Mapping[str, Any], folder: Path) -> DataSettings:
    """How data sets are read, from plain values; files are named from ``folder``. Raises UnknownNameError
    and SettingsError.
    """
    paths = {name: folder / values[name] for name in ("root", "classnames", "cache") if values.get(name)}
    settings: DataSettings = _replaced(DataSettings(), {**values, **paths}, "setting of data sets")
    return settings


def plain(settings: Any) -> dict[str, Any]:
    """Settings as plain values."""
    return {} if settings is None else asdict(settings)


def _replaced(settings: Any, changes: Mapping[str, Any], kind: str) -> Any:
    known = {field.name: getattr(settings, field.name) for field in fields(settings)}
    fitted = {}
    for name, value in changes.items():
        if name not in known:
            raise UnknownNameError(kind, name, known)
        fitted[name] = _fitted(name, value, known[name])
    return replace(settings, **fitted)


def _fitted(name: str, value: Any, like: Any) -> Any:
    """The value in the type of the default. YAML reads 1e-3 as text and 1 as a whole number."""
    if isinstance(like, float) and not isinstance(value, bool):
        try:
            return float(value)
        except (TypeError, ValueError):
            raise SettingsError(f"{name} is {value!r}: it must be a number.") from None
    if like is not None and type(value) is not type(like):
        raise SettingsError(f"{name} is {value!r}: it must be of the kind of {like!r}.")
    return value
