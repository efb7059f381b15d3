"""Recipes: one YAML file per experiment. Files with unknown keys are rejected.

protocol: base-to-novel          # or another of evaluation/protocols/, or ablation
out: runs/world/base-to-novel
data: world                      # the twelve tasks, or a list; for transfer protocols, the targets;
source: source                   # transfer protocols only: the data set to train on
methods: [zero-shot, dear]       # not with ablation; or all, or {method: dear, settings: {beta: 0.5}, ...}
of: [mask, loss]                 # ablation only: which ones; `without: [K = 7]` omits rows
seeds: [1, 2, 3]
shots: 16                        # or a list
model: ViT-B-16                  # if omitted: tiny for data of the Attribute World, else ViT-B-16 with
pretrained: laion2b_s34b_b88k    # these weights, from the hub
roles: roles.json                # a file, relative to the recipe's folder; or discovered, ground-truth,
                                 # published
train: {epochs: 10}
select: last                     # or val
dataset: {template: "a {}.", ...}  # how data sets are read; files relative to the recipe's folder
about: {...}                     # free: what the recipe reproduces, from where, on what, how long
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, get_args

from dear.errors import DataError, DearError, SettingsError, UnknownNameError
from dear.evaluation.ablations import ablation_plans, ablations
from dear.evaluation.experiment import Experiment, Model
from dear.evaluation.plan import Plan, Select, with_all
from dear.evaluation.protocols.base import Protocol
from dear.evaluation.protocols.base_to_novel import BaseToNovel
from dear.evaluation.protocols.registry import PROTOCOLS
from dear.evaluation.resolve import changed, data_settings, train_options
from dear.evaluation.values import fitted, known_keys, listed, mapping, numbers, path_from, text, texts
from dear.methods.registry import USUAL, known_method, methods_with_roles
from dear.reading.files import ReadingError
from dear.reading.plain import read_yaml
from dear.reading.typed import shown

WORLD = "world"
ABLATION = "ablation"
"""Takes the place of a protocol: variants of DeAR, in base-to-novel."""
KEYS = (
    "protocol", "out", "data", "methods", "of", "without", "seeds", "shots", "model", "pretrained", "roles",
    "train", "select", "dataset", "about",
)  # fmt: skip
METHOD_KEYS = ("method", "label", "role_variant", "quantile", "attributes", "settings")


class RecipeError(DearError):
    """A recipe that cannot be read: the message names the file and the key."""


def load_recipes(path: Path) -> list[Experiment]:
    """The experiment of a recipe, or those of all recipes in a folder, sorted by name. Raises RecipeError."""
    if path.is_dir():
        found = sorted([*path.glob("*.yaml"), *path.glob("*.yml")])
        if not found:
            raise RecipeError(f"{path} contains no recipe (*.yaml).")
        return [load_recipe(one) for one in found]
    return [load_recipe(path)]


def load_recipe(path: Path) -> Experiment:
    """The experiment of a recipe. Raises RecipeError naming the file and the key."""
    try:
        content = read_yaml(path)
    except ReadingError as error:
        if error.missing:
            raise RecipeError(f"there is no recipe {path}.") from error
        raise RecipeError(str(error)) from error
    if not isinstance(content, dict):
        raise RecipeError(f"{path} contains no keys; a recipe needs at least protocol and out.")
    try:
        return experiment_of(content, path.parent, path.stem)
    except DearError as error:
        raise RecipeError(f"{path}: {error}") from error


def experiment_of(content: Mapping[str, Any], folder: Path, recipe: str) -> Experiment:
    """The experiment that a recipe's content describes. Raises UnknownNameError for an unknown key,
    SettingsError for an invalid value.
    """
    known_keys(content, [*KEYS, *(one.name for kind in PROTOCOLS.values() for one in fields(kind))], "key")
    for key in ("protocol", "out"):
        if key not in content:
            raise SettingsError(f"the key {key!r} is missing.")
    ablation = content["protocol"] == ABLATION
    protocol = BaseToNovel() if ablation else _protocol(content)
    own = {one.name for one in fields(protocol)}
    fit = {"of": ablation, "without": ablation, "methods": not ablation}
    for key in content:
        if not fit.get(key, key in KEYS or key in own):
            raise SettingsError(f"the key {key!r} does not apply to the protocol {content['protocol']}.")
    if ablation:
        if not content.get("of"):
            raise SettingsError("the key 'of' is missing: it names the ablations.")
        plans = ablation_plans(
            texts("of", content["of"]), without=texts("without", content.get("without", []))
        )
    else:
        plans = _plans(listed(content.get("methods", [*USUAL])), protocol)
    select = content.get("select", "last")
    if select not in get_args(Select):
        raise UnknownNameError("select", str(select), get_args(Select))
    pretrained, roles = content.get("pretrained"), content.get("roles")
    protocol, data = protocol.arranged(data_names(texts("data", content.get("data", [*protocol.data]))))
    return Experiment(
        protocol=protocol,
        out=_out(content["out"]),
        data=data,
        plans=plans,
        seeds=numbers("seeds", content.get("seeds", 1)),
        shots=numbers("shots", content.get("shots", [*protocol.shots])),
        model=Model(
            text("model", content["model"]) if "model" in content else None,
            None if pretrained is None else text("pretrained", pretrained),
            None if roles is None else _roles(roles, folder),
        ),
        train=train_options(mapping("train", content.get("train", {}))),
        select=select,
        dataset=data_settings(mapping("dataset", content.get("dataset", {})), folder),
        about=mapping("about", content.get("about", {})) | {"recipe": recipe},
    )


def _protocol(content: Mapping[str, Any]) -> Protocol:
    """The protocol of a recipe, with its options. Raises UnknownNameError, SettingsError."""
    name = text("protocol", content["protocol"])
    if name not in PROTOCOLS:
        raise UnknownNameError("protocol", name, [*PROTOCOLS, ABLATION])
    kinds = {one.name: one.type for one in fields(PROTOCOLS[name])}
    given = {key: content[key] for key in kinds if key in content}
    return PROTOCOLS[name](**{key: fitted(key, value, kinds[key]) for key, value in given.items()})


def data_names(names: Sequence[str]) -> tuple[str, ...]:
    """Data sets by name, with "world" replaced by the twelve downstream tasks of the Attribute World."""
    from dear.data.world.names import downstream_names

    datasets = [dataset for name in names for dataset in (downstream_names() if name == WORLD else [name])]
    return tuple(dict.fromkeys(datasets))


def restricted(
    experiments: Sequence[Experiment],
    *,
    data: Sequence[str] | None = None,
    methods: Sequence[str] | None = None,
    seeds: Sequence[int] | None = None,
    out: Path | None = None,
) -> list[Experiment]:
    """Restrict experiments to some of their data sets and methods, with other seeds and below another output
    folder. The method "all" stands for every method that one of them has.

    Raises DataError for a data set or method that none of them has, and if an experiment is left empty.
    """
    kept = list(experiments)
    if data is not None:
        _had("data set", data, [name for one in kept for name in one.data])
        kept = [replace(one, data=_some("data sets", one, one.data, data)) for one in kept]
    if methods is not None:
        had = [plan.method for one in kept for plan in one.plans]
        methods = with_all(methods, dict.fromkeys(had))
        _had("method", methods, had)
        for at, one in enumerate(kept):
            names = _some("methods", one, [plan.method for plan in one.plans], methods)
            kept[at] = replace(one, plans=tuple(plan for plan in one.plans if plan.method in names))
    if seeds is not None:
        kept = [replace(one, seeds=tuple(seeds)) for one in kept]
    return kept if out is None else [replace(one, out=out / one.out.name) for one in kept]


def _had(what: str, wanted: Sequence[str], had: Sequence[str]) -> None:
    for name in wanted:
        if name not in had:
            known = ", ".join(dict.fromkeys(had))
            raise DataError(f"no recipe to run has the {what} {name!r}: available are {known}.")


def _some(what: str, experiment: Experiment, had: Sequence[str], wanted: Sequence[str]) -> tuple[str, ...]:
    kept = tuple(name for name in had if name in wanted)
    if not kept:
        raise DataError(
            f"{_name(experiment)} has none of the {what} {', '.join(wanted)}: "
            f"it has {', '.join(dict.fromkeys(had))}."
        )
    return kept


def _name(experiment: Experiment) -> str:
    return (
        f"the recipe {experiment.about['recipe']}"
        if "recipe" in experiment.about
        else experiment.protocol.name
    )


def _out(value: Any) -> Path:
    """The folder of the records. Raises SettingsError for one that leads out of where it is put."""
    out = path_from("out", value, Path())
    if ".." in out.parts or not out.name:
        raise SettingsError(f"the key 'out' is {shown(value)}: it must name a folder, without '..'.")
    return out


def _roles(value: Any, folder: Path) -> Path:
    """A role table's file, or the name of a packaged one."""
    from dear.roles.names import KINDS

    return Path(value) if value in KINDS else path_from("roles", value, folder)


def _plans(items: Sequence[Any], protocol: Protocol) -> tuple[Plan, ...]:
    plans = tuple(map(_plan, with_all(items, protocol.methods())))
    for (method, variant), times in Counter((plan.method, plan.variant) for plan in plans).items():
        if times > 1:
            called = f"{method} ({variant})" if variant else method
            raise SettingsError(f"{times} items of 'methods' are called {called}: give all but one a label.")
    return plans


def _plan(item: Any) -> Plan:
    given = mapping("methods", {"method": item} if isinstance(item, str) else item)
    known_keys(given, METHOD_KEYS, "key of a method")
    if "method" not in given:
        raise SettingsError("an item of 'methods' lacks the key 'method'.")
    changes = mapping("settings", given.pop("settings", {}))
    kinds = {field.name: field.type for field in fields(Plan)}
    plan = Plan(**{name: fitted(name, value, kinds[name]) for name, value in given.items()})
    plan = replace(plan, method=known_method(plan.method))
    for name in ("role_variant", "quantile", "attributes"):
        if name in given and not plan.needs_roles:
            wanted = " or ".join(methods_with_roles())
            raise SettingsError(f"{plan.method} has no head roles: the key {name!r} applies to {wanted}.")
    rows = [row.label for ablation in ablations().values() for row in ablation.rows]
    if plan.label and plan.label in rows:
        raise SettingsError(f"the label {plan.label!r} is that of an ablation row: choose another.")
    return replace(plan, settings=changed(plan.method, None, changes))
