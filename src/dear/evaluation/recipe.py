"""Recipes: one YAML file an experiment. Every key is known, or the file is refused.

protocol: base-to-novel          # or cross-dataset, domain-generalization, few-shot, ablation
out: runs/world/base-to-novel
data: world                      # the twelve tasks, or a list; the targets of the transfer protocols
source: source                   # transfer protocols only: what is trained on
methods: [zero-shot, dear]       # or {method: dear, label: soft, settings: {beta: 0.5}}; not with ablation
of: [mask, loss]                 # ablation only: which; `without: [K = 7]` leaves rows out
seeds: [1, 2, 3]
shots: 16                        # or a list
model: tiny
pretrained: ...
roles: roles.json                # a file; from the recipe's folder
train: {epochs: 10}
select: last                     # or val
dataset: {template: "a {}.", ...}  # how data sets are read; files from the recipe's folder
about: {...}                     # free: what the recipe reproduces, from where, on what, how long
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import yaml

from dear.errors import DataError, DearError, SettingsError, UnknownNameError
from dear.evaluation.ablations import ablation_plans
from dear.evaluation.experiment import Experiment, Model
from dear.evaluation.plan import Mask, Plan, Protocol, Select
from dear.evaluation.resolve import changed, data_settings, train_options
from dear.methods.settings import known_method

WORLD = "world"
PROTOCOLS = (*get_args(Protocol), "ablation")
KEYS = (
    "protocol", "out", "data", "source", "methods", "of", "without", "seeds", "shots", "model", "pretrained",
    "roles", "train", "select", "dataset", "about",
)  # fmt: skip
METHOD_KEYS = ("method", "label", "mask", "quantile", "attributes", "settings")


class RecipeError(DearError):
    """A recipe that cannot be read: the message names the file and the key."""


def load_recipes(path: Path) -> list[Experiment]:
    """The experiment of a recipe, or those of all recipes in a folder, in the order of their names. Raises
    RecipeError.
    """
    if path.is_dir():
        found = sorted([*path.glob("*.yaml"), *path.glob("*.yml")])
        if not found:
            raise RecipeError(f"{path} holds no recipe (*.yaml).")
        return [load_recipe(one) for one in found]
    return [load_recipe(path)]


def load_recipe(path: Path) -> Experiment:
    """The experiment of a recipe. Raises RecipeError that names the file and the key."""
    try:
        told = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise RecipeError(f"there is no recipe {path}.") from error
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise RecipeError(f"{path} is not readable YAML: {' '.join(str(error).split())}") from error
    if not isinstance(told, dict):
        raise RecipeError(f"{path} holds no keys; a recipe has at least protocol and out.")
    try:
        return experiment_of(told, path.parent, path.stem)
    except DearError as error:
        raise RecipeError(f"{path}: {error}") from error


def experiment_of(told: Mapping[str, Any], folder: Path, recipe: str) -> Experiment:
    """The experiment of a recipe's content. Raises UnknownNameError for a key, SettingsError for a value."""
    _known(told, KEYS, "key")
    for key in ("protocol", "out"):
        if key not in told:
            raise SettingsError(f"the key {key!r} is missing.")
    protocol = told["protocol"]
    if protocol not in PROTOCOLS:
        raise UnknownNameError("protocol", str(protocol), PROTOCOLS)
    ablation = protocol == "ablation"
    for key, wanted in {"of": ablation, "without": ablation, "methods": not ablation}.items():
        if key in told and not wanted:
            raise SettingsError(f"the key {key!r} does not go with the protocol {protocol}.")
    if ablation:
        if not told.get("of"):
            raise SettingsError("the key 'of' is missing: it names the ablations.")
        plans = ablation_plans(_listed(told["of"]), without=_listed(told.get("without", [])))
    else:
        plans = tuple(_plan(one) for one in _listed(told.get("methods", ["zero-shot", "dear"])))
    select = told.get("select", "last")
    if select not in get_args(Select):
        raise UnknownNameError("select", str(select), get_args(Select))
    roles = told.get("roles")
    return Experiment(
        protocol="base-to-novel" if ablation else protocol,
        out=Path(told["out"]),
        data=data_names(_listed(told.get("data", WORLD))),
        source=told.get("source"),
        plans=plans,
        seeds=_numbers("seeds", told.get("seeds", 1)),
        shots=_numbers("shots", told.get("shots", 16)),
        model=Model(
            told.get("model", "tiny"), told.get("pretrained"), None if roles is None else folder / roles
        ),
        train=train_options(_mapping("train", told.get("train", {}))),
        select=select,
        dataset=data_settings(_mapping("dataset", told.get("dataset", {})), folder),
        about=_mapping("about", told.get("about", {})) | {"recipe": recipe},
    )


def data_names(names: Sequence[str]) -> tuple[str, ...]:
    """Data sets by name, "world" replaced by the twelve downstream tasks of the Attribute World."""
    from dear.data.world.tasks import downstream_names

    found = [one for name in names for one in (downstream_names() if name == WORLD else [str(name)])]
    return tuple(dict.fromkeys(found))


def restricted(
    experiment: Experiment,
    *,
    data: Sequence[str] | None = None,
    methods: Sequence[str] | None = None,
    seeds: Sequence[int] | None = None,
    out: Path | None = None,
) -> Experiment:
    """The experiment on some of its data sets and methods, with other seeds, in a folder below another place.

    Raises DataError where it has none of these data sets or methods.
    """
    if data is not None:
        kept = tuple(name for name in experiment.data if name in data)
        if not kept:
            raise DataError(
                f"{_name(experiment)} has none of the data sets {', '.join(data)}: "
                f"it has {', '.join(experiment.data)}."
            )
        experiment = replace(experiment, data=kept)
    if methods is not None:
        plans = tuple(plan for plan in experiment.plans if plan.method in methods)
        if not plans:
            had = dict.fromkeys(plan.method for plan in experiment.plans)
            raise DataError(
                f"{_name(experiment)} has none of the methods {', '.join(methods)}: it has {', '.join(had)}."
            )
        experiment = replace(experiment, plans=plans)
    if seeds is not None:
        experiment = replace(experiment, seeds=tuple(seeds))
    return experiment if out is None else replace(experiment, out=out / experiment.out.name)


def _name(experiment: Experiment) -> str:
    return f"the recipe {experiment.about['recipe']}" if "recipe" in experiment.about else experiment.protocol


def _plan(told: Any) -> Plan:
    if isinstance(told, str):
        told = {"method": told}
    given = dict(_mapping("methods", told))
    _known(given, METHOD_KEYS, "key of a method")
    if "method" not in given:
        raise SettingsError("an item of 'methods' lacks the key 'method'.")
    if given.get("mask", "roles") not in get_args(Mask):
        raise UnknownNameError("mask", str(given["mask"]), get_args(Mask))
    known_method(given["method"])
    settings = changed(given["method"], None, _mapping("settings", given.pop("settings", {})))
    return Plan(**given, settings=settings)


def _known(told: Mapping[str, Any], keys: Sequence[str], kind: str) -> None:
    for key in told:
        if key not in keys:
            raise UnknownNameError(kind, str(key), keys)


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _mapping(key: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise SettingsError(f"the key {key!r} is {value!r}: it must hold keys and values.")
    return dict(value)


def _numbers(key: str, value: Any) -> tuple[int, ...]:
    found = _listed(value)
    if not all(isinstance(one, int) and not isinstance(one, bool) for one in found):
        raise SettingsError(f"the key {key!r} is {value!r}: it must be a whole number or a list of them.")
    return tuple(found)
