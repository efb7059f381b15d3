"""The settings that a plan runs with, and plans from plain values (of a recipe). Light to import: the one
place that knows how methods tell their settings.
"""

from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from dear.data.settings import DataSettings
from dear.errors import SettingsError
from dear.evaluation.plan import Plan
from dear.evaluation.values import fitted, known_keys, path_from
from dear.methods.declaration import MethodSettings
from dear.methods.registry import METHODS, known_method
from dear.training.settings import TrainOptions, TrainSettings

Training = TrainSettings | TrainOptions
"""Settings of training: whole ones, or what is set for all methods over what each is published with."""


def settings_of(plan: Plan, dataset: str) -> MethodSettings:
    """The settings that a plan runs with on a data set: its own, or the published ones."""
    mine: MethodSettings = plan.settings or METHODS[known_method(plan.method)].settings()
    return mine.for_data(dataset)


def training_of(plan: Plan, given: Training) -> TrainSettings:
    """The settings of training that a plan runs with: whole ones as they are, else the method's published
    ones with what is given of them.
    """
    if isinstance(given, TrainSettings):
        return given
    return given.over(METHODS[known_method(plan.method)].settings.training)


def changed(
    method: str, settings: MethodSettings | None, changes: Mapping[str, Any]
) -> MethodSettings | None:
    """A method's settings with some fields changed. Raises UnknownNameError for a field that it lacks,
    SettingsError for a method without settings or a value of the wrong type or range.
    """
    if not changes:
        return settings
    kind = METHODS[known_method(method)].settings
    if not fields(kind):
        raise SettingsError(f"{method} has no settings, and {', '.join(changes)} is given.")
    found: MethodSettings = _replaced(settings or kind(), changes, f"setting of {method}")
    return found


def train_options(values: Mapping[str, Any]) -> TrainOptions:
    """What is set of training for all methods, from plain values. Raises UnknownNameError, SettingsError."""
    whole = _replaced(TrainSettings(), values, "setting of training")
    return TrainOptions(**{name: getattr(whole, name) for name in values})


def data_settings(values: Mapping[str, Any], folder: Path) -> DataSettings:
    """How data sets are read, from plain values; files are named from ``folder``. Raises UnknownNameError
    and SettingsError.
    """
    names = [name for name in ("root", "classnames", "cache") if values.get(name) is not None]
    paths: dict[str, Any] = {name: path_from(name, values[name], folder) for name in names}
    template = values.get("template")
    if template is not None and "{" not in str(template):  # a file of templates
        paths["template"] = str(path_from("template", template, folder))
    settings: DataSettings = _replaced(DataSettings(), {**values, **paths}, "setting of data sets")
    return settings


def _replaced(settings: Any, changes: Mapping[str, Any], kind: str) -> Any:
    kinds = {field.name: field.type for field in fields(settings)}
    known_keys(changes, [*kinds], kind)
    return replace(settings, **{name: fitted(name, value, kinds[name]) for name, value in changes.items()})
