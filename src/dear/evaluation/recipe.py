"""Recipes: YAML files of an experiment, or of several that share keys (docs/reproduce.md says what each key
means). Unknown keys are refused.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from dear.data.settings import DataSettings
from dear.data.sources.benchmarks import standard_name
from dear.errors import DataError, DearError, SettingsError, UnknownNameError, warn
from dear.evaluation.ablations import ablation_setups, ablations
from dear.evaluation.experiment import Experiment, RunOptions
from dear.evaluation.protocols import PROTOCOLS
from dear.evaluation.protocols.base import Protocol
from dear.evaluation.protocols.base_to_novel import BaseToNovel
from dear.evaluation.resolve import MethodSetup
from dear.methods.registry import METHODS, PATH, known_method
from dear.reading.files import ReadingError, expanded
from dear.reading.plain import read_yaml
from dear.reading.typed import shown, typed
from dear.training.settings import TrainSettings

ALL = "all"
ABLATION = "ablation"
"""Takes the place of a protocol: variants of DeAR, in base-to-novel."""
LISTS = ("data", "methods", "of", "without", "seeds", "shots")
"""Keys whose value may be a list or a single item."""


class RecipeError(DearError):
    """A recipe that cannot be read: the message names the file and the key."""


@dataclass(frozen=True, kw_only=True)
class Recipe(RunOptions):
    """The keys of recipes, beside the options of their protocols; ``of`` and ``without`` are those of
    ablations, which have no ``methods``.
    """

    protocol: str
    out: Path = field()  # needed, unlike the option
    train: dict[str, Any] = field(default_factory=dict)
    about: dict[str, Any] = field(default_factory=dict)
    methods: tuple[Any, ...] | None = None
    of: tuple[str, ...] | None = None
    without: tuple[str, ...] = ()


def load_recipes(
    path: Path, out: Path | None = None, methods: Sequence[str] | None = None
) -> list[Experiment]:
    """The experiments of a recipe, of one part of it (``FILE.yaml:NAME``), or of all recipes in a folder,
    sorted by name. With ``out`` the records of each go to a subfolder of that, with the name of its own
    folder. With ``methods``, those that `change` is going to choose, classes outside the package that are not
    known and not among them are left out. Raises RecipeError naming the file and the key.
    """
    if path.is_dir():
        recipes = sorted([*path.glob("*.yaml"), *path.glob("*.yml")])
        if not recipes:
            raise RecipeError(f"{path} contains no recipe (*.yaml).")
        return [experiment for recipe in recipes for experiment in load_recipes(recipe, out, methods)]
    file, _, part = str(path).rpartition(":")
    if file.endswith((".yaml", ".yml")):
        path = Path(file)
    else:
        part = ""
    try:
        parts = _parts(typed(read_yaml(path), dict[str, Any], path), path)
        if part and part not in parts:
            raise UnknownNameError("part", part, filter(None, parts))
        return [
            _experiment(content, path, out, ":".join(filter(None, [path.stem, name])), methods)
            for name, content in parts.items()
            if part in ("", name)
        ]
    except ReadingError as error:
        raise RecipeError(f"there is no recipe {path}." if error.missing else str(error)) from error
    except DearError as error:
        raise RecipeError(f"{path}: {str(error).removeprefix(f'{path}: ')}") from error


def _parts(content: dict[str, Any], path: Path) -> dict[str, dict[str, Any]]:
    """The content of each part of a recipe by its name; a recipe without ``each`` is one part, called ""."""
    each = typed(content.pop("each", {"": {}}), dict[str, dict[str, Any]], path, "each")
    parts = {}
    for name, own in each.items():
        parts[name] = {**content, **own}
        if name:
            parts[name]["out"] = f"{content.get('out', '')}-{name}"
        if "about" in content and "about" in own:
            parts[name]["about"] = {**content["about"], **own["about"]}
    return parts


def _experiment(
    content: dict[str, Any], path: Path, out: Path | None, title: str, chosen: Sequence[str] | None
) -> Experiment:
    """The experiment that a recipe's content describes. Raises ReadingError naming the key, DearError."""
    kinds: Mapping[str, type[Protocol]] = {**PROTOCOLS, ABLATION: BaseToNovel}
    name = typed(content.get("protocol"), str, path, "protocol")
    if name not in kinds:
        raise UnknownNameError("protocol", name, kinds)
    options = [option.name for option in fields(kinds[name])]
    unused = ("methods",) if name == ABLATION else ("of", "without")
    known = [*options, *(key.name for key in fields(Recipe) if key.name not in unused)]
    if unknown := [key for key in content if key not in known]:
        for group, kind in (("dataset", DataSettings), ("train", TrainSettings)):
            if unknown[0] in {option.name for option in fields(kind)}:
                line = f"{group}: {{{unknown[0]}: {shown(content[unknown[0]])}}}"
                raise SettingsError(f"{unknown[0]} is a key of {group}: write {line}.")
        raise UnknownNameError("key", unknown[0], known)
    protocol = typed({key: content[key] for key in options if key in content}, kinds[name], path)
    keys = {
        key: [value] if key in LISTS and not isinstance(value, list) else value
        for key, value in content.items()
        if key not in options
    }
    recipe, folder = typed(keys, Recipe, path), path.parent
    if name == ABLATION:
        setups = ablation_setups(recipe.of or ablations(), without=recipe.without)
    else:
        methods = protocol.usual()
        if recipe.methods is not None:
            methods = expand_all(recipe.methods, protocol.methods())
        if chosen is not None and ALL not in chosen and not all(map(PATH.fullmatch, chosen)):
            methods = [item for item in methods if not _is_unknown_class(item)] or methods
        setups = tuple(_setup(item, path) for item in methods)
    run_options = {option.name: getattr(recipe, option.name) for option in fields(RunOptions)} | {
        "out": expanded(recipe.out) if out is None else out / recipe.out.name,
        "roles": recipe.roles and _roles(recipe.roles, folder),
        "dataset": _with_paths(recipe.dataset, folder),
    }
    about = recipe.about | {"recipe": title}
    return Experiment(protocol=protocol, methods=setups, about=about, **run_options)


def _is_unknown_class(item: Any) -> bool:
    """True for an item of ``methods`` that is a class outside the package and not registered."""
    name = item.get("method") if isinstance(item, dict) else item
    if not (isinstance(name, str) and PATH.fullmatch(name)):
        return False
    try:
        known_method(name)
    except SettingsError:
        return True
    return False


def _setup(item: Any, path: Path) -> MethodSetup:
    """The setup that an item of ``methods`` describes, a name or keys."""
    keys = {"method": item} if isinstance(item, str) else typed(item, dict[str, Any], path, "methods")
    setup = typed(keys, MethodSetup, path, "methods")
    kind, table = setup.declared.settings, setup.roles and _roles(setup.roles, path.parent)

    def found(name: str, value: Any) -> Any:
        return _file(value, path.parent) if name in kind.paths and value != getattr(kind, name) else value

    settings = {name: found(name, value) for name, value in setup.settings.items()}
    each: dict[str, Any] = dict(setup.each)
    if "settings" in each:
        each["settings"] = {
            name: tuple(found(name, value) for value in values) for name, values in each["settings"].items()
        }
    return replace(setup, settings=settings, roles=table, each=each)


def expand_all(items: Sequence[Any], methods: Iterable[str] = METHODS) -> list[Any]:
    """Expand "all" in a list of methods, which are names or mappings with the name under "method". "all"
    stands for each of ``methods`` that no other item names; the result is then in their order.
    """
    if ALL not in items:
        return list(items)
    order = list(methods)
    names = [item.get("method") if isinstance(item, dict) else item for item in items]
    pairs = [*zip(names, items, strict=True), *((name, name) for name in order if name not in names)]
    pairs.sort(key=lambda pair: order.index(pair[0]) if pair[0] in order else len(order))
    return [item for _, item in pairs if item != ALL]


def change(
    experiments: Sequence[Experiment],
    *,
    data: Sequence[str] | None = None,
    methods: Sequence[str] | None = None,
    settings: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
    train: Mapping[str, Any] = MappingProxyType({}),
    dataset: Mapping[str, Any] = MappingProxyType({}),
    **options: Any,
) -> list[Experiment]:
    """Restrict experiments to some of their data sets, by any of their names, and methods; with other
    ``settings`` of methods, by method, of training and of reading data sets, and other ``options``, fields of
    `RunOptions`. The method "all" stands for every method that one of them has; classes outside the
    package alone restrict nothing, because they have to be named for dear to import them. A model without
    weights has its usual ones. Warns of the experiments that are left out, because they have none of the data
    sets or of the methods.

    Raises DataError for a data set or method that none of them has, and if no experiment is left;
    SettingsError for a setting that a recipe gives its rows.
    """
    known_data = dict.fromkeys(standard_name(name) for experiment in experiments for name in experiment.data)
    known_methods = dict.fromkeys(setup.method for experiment in experiments for setup in experiment.methods)
    data = [*known_data] if data is None else [*map(standard_name, data)]
    methods = [*known_methods] if methods is None else expand_all(methods, known_methods)
    for kind, names, known in (("data set", data, known_data), ("method", methods, known_methods)):
        if unknown := [name for name in names if name not in known]:
            raise DataError(
                f"no recipe to run has the {kind} {unknown[0]!r}: available are {', '.join(known)}."
            )
    if all(METHODS[name].module for name in methods):
        methods = [*known_methods]
    options = {name: tuple(value) if isinstance(value, list) else value for name, value in options.items()}
    if "model" in options:
        options = {"pretrained": None, **options}
    changed, left_out = [], []
    for experiment in experiments:
        chosen_data = tuple(name for name in experiment.data if standard_name(name) in data)
        setups = tuple(
            _with_settings(setup, settings.get(setup.method, {}), train, experiment.recipe)
            for setup in experiment.methods
            if setup.method in methods
        )
        if not chosen_data or not setups:
            left_out.append(experiment.recipe)
            continue
        fields_of_all: dict[str, Any] = {
            "train": {**experiment.train, **train},
            "dataset": replace(experiment.dataset, **dataset),
            "about": {**experiment.about, **({"options": [*options]} if options else {})},
        }
        changed.append(replace(experiment, data=chosen_data, methods=setups, **fields_of_all, **options))
    if not changed:
        raise DataError("no recipe to run has one of these data sets together with one of these methods.")
    if left_out:
        warn(f"left out, without these data sets or methods: {', '.join(left_out)}")
    return changed


def _with_settings(
    setup: MethodSetup, settings: Mapping[str, Any], train: Mapping[str, Any], recipe: str
) -> MethodSetup:
    """A setup with more settings than its recipe's. Raises SettingsError for one that its entry in the recipe
    gives, or chooses; for one of ``train``, those of all methods, too.
    """
    for part, names in (("settings", settings), ("train", train)):
        taken = {**getattr(setup, part), **setup.each.get(part, {})}
        if given := [name for name in names if name in taken]:
            raise SettingsError(
                f"{given[0]} of {setup.method} is set by the recipe {recipe}: omit the option, or change a "
                "copy of the recipe."
            )
    return replace(setup, settings={**setup.settings, **settings})


def _roles(path: Path, folder: Path) -> Path:
    """A role table's file, or the name of a packaged one."""
    from dear.roles.settings import KINDS

    return path if str(path) in KINDS else folder / expanded(path)


def _with_paths(settings: DataSettings, folder: Path) -> DataSettings:
    """Settings of data sets, whose paths are relative to the recipe's folder."""
    root, classnames = (path and folder / expanded(path) for path in (settings.root, settings.classnames))
    settings = replace(settings, root=root, classnames=classnames)
    if settings.template is not None and "{" not in settings.template:  # a file of templates
        settings = replace(settings, template=str(folder / expanded(settings.template)))
    return settings


def _file(value: str, folder: Path) -> str:
    """A file that a setting of a method names, relative to the recipe's folder."""
    file = str(folder / expanded(value))
    return file if os.sep in file else os.path.join(".", file)  # no word: "templates"
