"""Recipes: one YAML file per experiment. Files with unknown keys are rejected.

protocol: base-to-novel          # or another of evaluation/protocols/, or ablation
out: runs/world/base-to-novel    # in the current folder
data: world                      # the twelve tasks, or a list, which may name world-large, the tasks with
                                 # many classes; for transfer protocols, the targets
source: source                   # transfer protocols only: the data set to train on
methods: [zero-shot, dear]       # not with ablation; or all, or {method: dear, settings: {beta: 0.5}, ...}
of: [mask, loss]                 # ablation only: which ones; `without: [K = 7]` omits rows
seeds: [1, 2, 3]
shots: 16                        # or a list
model: ViT-B-16                  # if omitted: tiny for data of the Attribute World, else ViT-B-16 with
pretrained: laion2b_s34b_b88k    # these weights, from the hub
roles: roles.json                # a file, from the recipe's folder; or discovered, ground-truth,
                                 # published
train: {epochs: 10}
select: last                     # or val
dataset: {template: "a {}.", ...}  # how data sets are read; files from the recipe's folder
about: {...}                     # free: what the recipe reproduces, from where, on what, how long
"""

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from dear.data.settings import DataSettings
from dear.errors import DataError, DearError, SettingsError, UnknownNameError
from dear.evaluation.ablations import ablation_plans, ablations
from dear.evaluation.experiment import Experiment, RunOptions
from dear.evaluation.plan import Plan, expand_all
from dear.evaluation.protocols import PROTOCOLS
from dear.evaluation.protocols.base import Protocol
from dear.evaluation.protocols.base_to_novel import BaseToNovel
from dear.methods.declaration import MethodSettings
from dear.methods.registry import METHODS, USUAL, known_method, methods_with_roles
from dear.reading.files import ReadingError, expanded
from dear.reading.plain import read_yaml
from dear.reading.typed import in_utf8, shown, typed

ABLATION = "ablation"
"""Takes the place of a protocol: variants of DeAR, in base-to-novel."""
LISTS = ("data", "methods", "of", "without", "seeds", "shots")
"""Keys whose value may be a list or a single item."""


class RecipeError(DearError):
    """A recipe that cannot be read: the message names the file and the key."""


@dataclass(frozen=True, kw_only=True)
class Recipe(RunOptions):
    """The keys of every recipe; the options of its protocol are keys too."""

    protocol: str
    out: Path = field()  # needed, unlike the option
    about: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ProtocolRecipe(Recipe):
    """The keys of a recipe that compares methods."""

    methods: tuple[Any, ...] = USUAL


@dataclass(frozen=True, kw_only=True)
class AblationRecipe(Recipe):
    """The keys of a recipe of DeAR's ablations."""

    of: tuple[str, ...]
    without: tuple[str, ...] = ()


def load_recipes(path: Path, out: Path | None = None) -> list[Experiment]:
    """The experiment of a recipe, or those of all recipes in a folder, sorted by name; ``out`` as in
    `load_recipe`. Raises RecipeError.
    """
    if path.is_dir():
        recipes = sorted([*path.glob("*.yaml"), *path.glob("*.yml")])
        if not recipes:
            raise RecipeError(f"{path} contains no recipe (*.yaml).")
        return [load_recipe(recipe, out) for recipe in recipes]
    return [load_recipe(path, out)]


def load_recipe(path: Path, out: Path | None = None) -> Experiment:
    """The experiment of a recipe. With ``out`` its records go to a subfolder of that, with the name of the
    recipe's own folder. Raises RecipeError naming the file and the key.
    """
    # Its name marks the folder of the runs; readers of a text drop a byte order mark.
    if not in_utf8(path.stem) or path.stem != path.stem.strip("\ufeff").strip():
        raise RecipeError(
            f"{path}: its name is not in UTF-8, or begins or ends with a space or a byte order mark: rename "
            "it."
        )
    try:
        content = read_yaml(path)
        if not isinstance(content, dict):
            raise RecipeError(f"{path} contains no keys; a recipe needs at least protocol and out.")
        return _experiment(content, path, out)
    except ReadingError as error:
        raise RecipeError(f"there is no recipe {path}." if error.missing else str(error)) from error
    except RecipeError:
        raise
    except DearError as error:
        raise RecipeError(f"{path}: {str(error).removeprefix(f'{path}: ')}") from error


def _experiment(content: dict[Any, Any], path: Path, out: Path | None) -> Experiment:
    """The experiment that a recipe's content describes. Raises ReadingError naming the key, DearError."""
    protocol = _protocol(content, path)
    for key in ("data", "source", "model", "pretrained"):
        _require_user(content.get(key), key)
    content = {
        key: [value] if key in LISTS and not isinstance(value, list) else value
        for key, value in content.items()
        if key not in {option.name for option in fields(protocol)}
    }
    folder = path.parent
    recipe: Recipe
    if content["protocol"] == ABLATION:
        recipe = ablation = typed(content, AblationRecipe, path)
        plans = ablation_plans(ablation.of, without=ablation.without)
    else:
        recipe = comparison = typed(content, ProtocolRecipe, path)
        plans = _plans(comparison.methods, protocol, path)
    options = {option.name: getattr(recipe, option.name) for option in fields(RunOptions)}
    options |= {
        "out": expanded(recipe.out) if out is None else out / recipe.out.name,
        "roles": recipe.roles and _roles(recipe.roles, folder),
        "dataset": _with_paths(recipe.dataset, folder),
    }
    return Experiment(protocol=protocol, plans=plans, about=recipe.about | {"recipe": path.stem}, **options)


def _protocol(content: Mapping[Any, Any], path: Path) -> Protocol:
    """The protocol of a recipe, with its options. Raises ReadingError, UnknownNameError, and SettingsError
    for a key that is another protocol's.
    """
    name = typed(content, dict[str, Any], path).get("protocol")
    if name is None:
        raise SettingsError("the key 'protocol' is missing.")
    typed(name, str, path, "protocol")
    kinds: dict[str, type[Protocol]] = {**PROTOCOLS, ABLATION: BaseToNovel}
    if name not in kinds:
        raise UnknownNameError("protocol", name, kinds)
    keys = {
        protocol: [
            key.name
            for cls in (kind, AblationRecipe if protocol == ABLATION else ProtocolRecipe)
            for key in fields(cls)
        ]
        for protocol, kind in kinds.items()
    }
    for key in content:
        if key not in keys[name] and any(key in others for others in keys.values()):
            raise SettingsError(f"the key {key!r} does not apply to the protocol {name}.")
        if key not in keys[name]:
            raise UnknownNameError("key", key, keys[name])
    options = {key.name: content[key.name] for key in fields(kinds[name]) if key.name in content}
    return typed(options, kinds[name], path)


def restrict(
    experiments: Sequence[Experiment],
    *,
    data: Sequence[str] | None = None,
    methods: Sequence[str] | None = None,
    seeds: Sequence[int] | None = None,
) -> list[Experiment]:
    """Restrict experiments to some of their data sets and methods, with other seeds. The method "all" stands
    for every method that one of them has.

    Raises DataError for a data set or method that none of them has, and if an experiment is left empty.
    """
    parts = list(experiments)
    if data is not None:
        _require_known("data set", data, [name for part in parts for name in part.data])
        parts = [replace(part, data=_part("data sets", part, part.data, data)) for part in parts]
    if methods is not None:
        available = [plan.method for part in parts for plan in part.plans]
        methods = expand_all(methods, dict.fromkeys(available))
        _require_known("method", methods, available)
        for index, part in enumerate(parts):
            names = _part("methods", part, [plan.method for plan in part.plans], methods)
            plans = tuple(plan for plan in part.plans if plan.method in names)
            parts[index] = replace(part, plans=plans)
    if seeds is not None:
        parts = [replace(part, seeds=tuple(seeds)) for part in parts]
    return parts


def _require_known(kind: str, names: Sequence[str], available: Sequence[str]) -> None:
    for name in names:
        if name not in available:
            listing = ", ".join(dict.fromkeys(available))
            raise DataError(f"no recipe to run has the {kind} {name!r}: available are {listing}.")


def _part(
    kind: str, experiment: Experiment, available: Sequence[str], names: Sequence[str]
) -> tuple[str, ...]:
    part = tuple(name for name in available if name in names)
    if not part:
        title = f"the recipe {experiment.recipe}" if experiment.recipe else experiment.protocol.name
        raise DataError(
            f"{title} has none of the {kind} {', '.join(names)}: it has "
            f"{', '.join(dict.fromkeys(available))}."
        )
    return part


def _require_user(value: Any, key: str) -> None:
    """Raise SettingsError for a name, or one in a list, that begins with ~ and names neither a user nor a
    file here.
    """
    for name in value if isinstance(value, list) else [value]:
        try:
            expanded(name if isinstance(name, str) else "")
        except ReadingError as error:
            raise SettingsError(f"the key {key!r} is {shown(name)}: {error.reason}.") from error


def _roles(path: Path, folder: Path) -> Path:
    """A role table's file, or the name of a packaged one."""
    from dear.roles.settings import KINDS

    return path if str(path) in KINDS else folder / expanded(path)


def _with_paths(settings: DataSettings, folder: Path) -> DataSettings:
    """Settings of data sets, whose files are relative to the recipe's folder."""
    if settings.classnames is not None:
        settings = replace(settings, classnames=folder / expanded(settings.classnames))
    if settings.template is not None and "{" not in settings.template:  # a file of templates
        file = folder / expanded(settings.template)
        if "{" in str(file):
            raise SettingsError(
                f"the key 'dataset.template' is {shown(settings.template)} in a folder with {{ in its name, "
                "by which a template is told from a file: rename the folder."
            )
        settings = replace(settings, template=str(file))
    return settings


def _with_files(settings: MethodSettings, folder: Path) -> MethodSettings:
    """Settings of a method, whose files are relative to the recipe's folder."""
    files = dict[str, str]()
    for setting in fields(settings):
        value = getattr(settings, setting.name)
        if setting.name in settings.paths and value != setting.default:
            file = str(folder / expanded(value))
            files[setting.name] = (
                file if os.sep in file else os.path.join(".", file)
            )  # no word, as "templates"
    return settings.with_values(**files)


def _plans(items: Sequence[Any], protocol: Protocol, path: Path) -> tuple[Plan, ...]:
    plans = tuple(
        _plan(item, path, f"methods[{items.index(item)}]" if item in items else "methods")
        for item in expand_all(items, protocol.methods())
    )
    for (method, variant), times in Counter((plan.method, plan.variant) for plan in plans).items():
        if times > 1:
            name = f"{method} ({variant})" if variant else method
            raise SettingsError(f"{times} items of 'methods' are called {name}: give all but one a label.")
    return plans


def _plan(item: Any, path: Path, key: str) -> Plan:
    values = dict(item) if isinstance(item, dict) else {"method": item} if isinstance(item, str) else item
    raw_settings = values.pop("settings", None) if isinstance(item, dict) else None
    plan = typed(values, Plan, path, key)
    plan = replace(plan, method=known_method(plan.method))
    if raw_settings is not None:
        settings = typed(raw_settings, METHODS[plan.method].settings, path, f"{key}.settings")
        settings = _with_files(settings, path.parent)
        plan = replace(plan, settings=settings if raw_settings else None)
    for name in ("role_variant", "quantile", "attributes"):
        if isinstance(item, dict) and name in item and not plan.needs_roles:
            methods = " or ".join(methods_with_roles())
            raise SettingsError(f"{plan.method} has no head roles: the key {name!r} applies to {methods}.")
    rows = [row.label for ablation in ablations().values() for row in ablation.rows]
    if plan.label and plan.label in rows:
        raise SettingsError(f"the label {plan.label!r} is that of an ablation row: choose another.")
    return plan
