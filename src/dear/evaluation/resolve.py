"""A method with its settings (`MethodSetup`), and a run of it on some data (`ResolvedRun`), which holds
everything that its results depend on, apart from the code. Light to import.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from itertools import product
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from dear.errors import SettingsError, warn
from dear.evaluation.protocols.base import Protocol
from dear.evaluation.records import run_name
from dear.methods.declaration import (
    NOT_PUBLISHED,
    Declaration,
    MethodSettings,
    PublishedValues,
    published_values,
)
from dear.methods.registry import METHODS, known_method, methods_with_roles
from dear.reading.typed import PositiveInt, check_fields, check_overrides
from dear.roles.settings import Quantile
from dear.text import list_names
from dear.training.settings import TrainSettings, check_training, resolve_training, used_training

if TYPE_CHECKING:
    import torch

    from dear.backbone.clip import Clip
    from dear.data.dataset import Dataset
    from dear.roles.table import RoleTable

RoleVariant = Literal["roles", "all-isolated", "all-mixed", "shuffled", "random"]
"""The role table unchanged, one of the paper's ablations of it, or roles drawn at random."""
Select = Literal["last", "val"]
MOST_COMBINATIONS = 1000
"""Each is trained in every run."""


@dataclass(frozen=True)
class Choices:
    """Values of settings of a method and of its training, among which validation images choose."""

    settings: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    train: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class MethodSetup:
    """One method with its settings, to run on each data set and seed.

    Attributes:
        method: The method's name.
        settings: The method's settings that the user sets, by field, as in ``{"tokens": 4}``; the others are
            those of the method's authors, or the defaults (`resolve`).
        role_variant: For methods with head roles, which variant of the role table the mask is built from.
        quantile: For methods with head roles, assign the roles anew, with this share of the heads at each end
            of concept entropy.
        attributes: For methods with head roles, K: the number of core attributes.
        roles: For methods with head roles, a role table of its own: a file, or the name of a packaged one.
        label: Name of these settings in records and tables, for example "CE + reg".
        train: The settings of its training that the user sets, over those that all methods have; not of its
            teacher's.
        each: Values of ``settings`` and of ``train`` to choose among, as in ``{"train": {"lr": (0.002,
            0.02)}}``. Every run trains all their combinations, and tests the one with the highest accuracy on
            validation images.
    """

    method: str
    settings: Mapping[str, Any] = field(default_factory=dict, hash=False)
    role_variant: RoleVariant = "roles"
    quantile: Quantile | None = None
    attributes: PositiveInt | None = None
    roles: Path | None = None
    label: str | None = None
    train: Mapping[str, Any] = field(default_factory=dict, hash=False)
    each: Mapping[str, Mapping[str, Sequence[Any]]] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        """Raise UnknownNameError for the method, SettingsError for values that fields do not take, for
        settings, options of head roles and settings of training that it does not have, and for values to
        choose among that are none or also set.
        """
        object.__setattr__(self, "method", known_method(self.method))
        settings = check_overrides(self.settings, self.declared.settings, f"the settings of {self.method}")
        object.__setattr__(self, "settings", settings)
        if self.declared.roles is None and not self._takes_roles_unchanged:
            raise SettingsError(
                f"{self.method} has no head roles: role_variant, quantile, attributes and roles apply to "
                f"{' or '.join(methods_with_roles())}."
            )
        object.__setattr__(self, "train", check_training(self.train, f"the training of {self.method}"))
        object.__setattr__(self, "each", check_overrides(self.each, Choices, f"each of {self.method}"))
        check_fields(self)
        if not self.declared.trains and (self.train or self.each.get("train")):
            raise SettingsError(f"{self.method} is not trained: omit train.")
        self._check_choices()

    def _check_choices(self) -> None:
        for part, by_name in self.each.items():
            for name, values in by_name.items():
                if not values:
                    raise SettingsError(f"each of {self.method}: {name} has no values to choose among.")
                if name in getattr(self, part):
                    raise SettingsError(f"{name} of {self.method} is set, and also to be chosen: omit one.")
        count = prod(len(values) for by_name in self.each.values() for values in by_name.values())
        if count > MOST_COMBINATIONS:
            raise SettingsError(
                f"each of {self.method} has {count:,} combinations: give at most {MOST_COMBINATIONS:,}."
            )
        if self.each:
            self.candidates()

    def candidates(self) -> list["MethodSetup"]:
        """A setup for each combination of the values to choose among, the last of which vary first; of a
        setup without choices itself.
        """
        names = [(part, name) for part, by_name in self.each.items() for name in by_name]
        setups = list[MethodSetup]()
        for values in product(*(self.each[part][name] for part, name in names)):
            chosen = {"settings": dict(self.settings), "train": dict(self.train)}
            for (part, name), value in zip(names, values, strict=True):
                chosen[part][name] = value
            setups.append(replace(self, settings=chosen["settings"], train=chosen["train"], each={}))
        return setups

    def train_over(self, train: Mapping[str, Any]) -> dict[str, Any]:
        """Its settings of training over those that all methods have. Epochs replace a number of steps."""
        replaced = ("steps_per_shot",) if "epochs" in self.train else ()
        return {name: value for name, value in train.items() if name not in replaced} | {**self.train}

    @property
    def variant(self) -> str | None:
        """How the run differs from the method as published; None if it does not."""
        if self.label:
            return self.label
        parts = [
            "" if self.roles is None else f"roles {self.roles.stem}",
            "" if self.role_variant == "roles" else self.role_variant,
            "" if self.quantile is None else f"q = {100 * self.quantile:g}%",
            "" if self.attributes is None else f"K = {self.attributes}",
        ]
        return ", ".join(part for part in parts if part) or None

    @property
    def declared(self) -> Declaration:
        """The properties of the method."""
        return METHODS[self.method]

    @property
    def can_lack_roles(self) -> bool:
        """True if the method also runs where no role table is known, and no option of the mask is set."""
        return self.declared.roles == "optional" and self._takes_roles_unchanged

    @property
    def _takes_roles_unchanged(self) -> bool:
        """True if no option of the role mask is set."""
        return (self.role_variant, self.quantile, self.attributes, self.roles) == ("roles", None, None, None)

    def table(self, roles: "RoleTable | None", seed: int) -> "RoleTable | None":
        """The role table of a run; shuffled and random roles are others for each seed."""
        from dear.roles.variants import draw_roles, shuffle_roles, with_attributes, with_quantile, with_role

        if roles is None or self.declared.roles is None:
            return None
        if self.attributes is not None:
            roles = with_attributes(roles, self.attributes)
        if self.quantile is not None:
            roles = with_quantile(roles, self.quantile)
        match self.role_variant:
            case "roles":
                return roles
            case "shuffled":
                return shuffle_roles(roles, seed)
            case "random":
                return draw_roles(roles, seed)
            case "all-isolated":
                return with_role(roles, "generalization")
            case "all-mixed":
                return with_role(roles, "mixed")


@dataclass(frozen=True, kw_only=True)
class ResolvedRun:
    """A run with everything that its results depend on, apart from the code. Its settings follow from the
    rest: a mistake in them is raised where they are first asked for (`Session.complete` does).

    Attributes:
        clip: The backbone, as loaded.
        datasets: The one that is trained on, followed by the others that are tested on.
        roles: The role table of the backbone, if it is known.
        train: The training settings of all methods that the user sets, by field.
        select: Which epoch is tested: the last, or the best on validation images of the training classes.
        device: The device that it is resolved for, by default that of the backbone.
        student: What the authors of the method that this one is the teacher of set.
        teacher: The run that trains the method's teacher; None for a method without one.
        candidates: The runs of all combinations of settings among which validation images choose. This run
            then has the settings of the first of them.
    """

    protocol: Protocol
    clip: "Clip"
    datasets: tuple["Dataset", ...]
    setup: MethodSetup
    seed: int
    shots: int = 16
    roles: "RoleTable | None" = None
    train: Mapping[str, Any] = field(default_factory=dict)
    select: Select = "last"
    device: "torch.device | None" = None
    student: PublishedValues = NOT_PUBLISHED
    teacher: "ResolvedRun | None" = None
    candidates: tuple["ResolvedRun", ...] = ()

    @property
    def source(self) -> "Dataset":
        """The data set that is trained on."""
        return self.datasets[0]

    @property
    def targets(self) -> tuple["Dataset", ...]:
        """The other data sets that are tested on."""
        return self.datasets[1:]

    @property
    def decouples(self) -> bool:
        """True if the method scores what it was not trained on by the class feature alone here."""
        return self.protocol.novelty in self.setup.declared.decoupled_on

    @cached_property
    def _resolved(self) -> tuple["ResolvedSettings", ...]:
        """All settings where it would train on each of its data sets, those of the first candidate."""
        setup = self.setup.candidates()[0]
        resolve_on = partial(resolve, self.protocol, setup, shots=self.shots, train=self.train)
        return tuple(
            resolve_on(dataset=data.name, templates=data.templates, student=self.student)
            for data in self.datasets
        )

    @property
    def authors(self) -> PublishedValues:
        """What the method's authors set."""
        return self._resolved[0].authors

    @cached_property
    def settings(self) -> MethodSettings:
        """The method's settings for the data set that it trains on."""
        return self._resolved[0].method.with_files(self.source.name)

    @cached_property
    def target_settings(self) -> dict[str, MethodSettings]:
        """Those for a target by its name, where its authors have other templates for it."""
        names = self.settings.template_fields()
        by_target = dict[str, MethodSettings]()
        for target, resolved in zip(self.targets, self._resolved[1:], strict=True):
            templates = {name: getattr(resolved.method, name) for name in names}
            if (settings := replace(self.settings, **templates)) != self.settings:
                by_target[target.name] = settings
        return by_target

    @cached_property
    def training(self) -> TrainSettings:
        """The training settings: as the user sets them, or as published for the method."""
        from dear.backbone.device import precision_for

        training = self._resolved[0].training
        return replace(training, precision=precision_for(self.clip, training.precision, self.device))

    @cached_property
    def table(self) -> "RoleTable | None":
        """The role table that the method uses, of its variant; None for a method without head roles."""
        return self.setup.table(self.roles, self.seed)

    @property
    def trainings(self) -> tuple["ResolvedRun", ...]:
        """The runs that are trained for it: its candidates, or itself alone."""
        return self.candidates or (self,)

    @property
    def used_training(self) -> dict[str, Any]:
        """The settings of training that change the run (`used_training`)."""
        return self._used(asdict(self.training))

    def _used(self, train: Mapping[str, Any]) -> dict[str, Any]:
        method = self.setup.declared
        return used_training(train, steps=method.takes_steps(self.settings), images=method.trains is not None)

    @property
    def weights(self) -> dict[str, Any]:
        """The identity of the backbone, as plain values."""
        return asdict(self.clip.identity)

    @property
    def overrides(self) -> dict[str, dict[str, Any]]:
        """The settings of the method, and of its training, that the user set."""
        return {"method": dict(self.setup.settings), "train": self._used(self.setup.train_over(self.train))}

    @cached_property
    def key(self) -> str:
        """16 hexadecimal digits that change with everything the run's results depend on, except the code of
        this package. The source of a method outside the package counts.
        """
        if self.candidates:
            return _digest(json.dumps([candidate.key for candidate in self.candidates]))
        what = self.protocol.fingerprint + " decoupled" * self.decouples
        if self.target_settings:
            by_name = {name: asdict(settings) for name, settings in self.target_settings.items()}
            what += f" {json.dumps(by_name, sort_keys=True)}"
        return self._key(what, self.datasets)

    @cached_property
    def training_key(self) -> str:
        """The same for the training alone."""
        return self._key(self.protocol.shared_training or self.protocol.fingerprint, self.datasets[:1])

    def settings_for(self, dataset: "Dataset") -> MethodSettings:
        """The method's settings where it classifies the images of a data set."""
        return self.target_settings.get(dataset.name, self.settings)

    @property
    def name(self) -> str:
        """The name of the run's files."""
        method, variant = self.setup.method, self.setup.variant
        return run_name(self.protocol, self.source.name, method, variant, self.seed, self.shots, self.key)

    def file(self, folder: Path, ending: str = ".json") -> Path:
        """The run's file in a folder, its record's by default."""
        return folder / (self.name + ending)

    def _key(self, what: str, datasets: Sequence["Dataset"]) -> str:
        fields = [
            what,
            self.setup.method + self.setup.declared.code_hash,
            self.seed,
            self.shots,
            self.select,
            self.weights,
            [dataset.identity for dataset in datasets],
            self._used(self.training.fingerprint_fields()),
            asdict(self.settings),
        ]
        texts = [json.dumps(field, sort_keys=True) for field in fields]
        texts.append("null" if self.table is None else self.table.text)
        if self.teacher is not None:
            texts.append(f'"{self.teacher._key("teacher", self.teacher.datasets)}"')
        return _digest(f"[{', '.join(texts)}]")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def warn_of_unused_training(setup: MethodSetup, settings: MethodSettings, train: Mapping[str, Any]) -> None:
    """Warn of settings of training that change nothing."""
    method = setup.declared
    used = used_training(train, steps=method.takes_steps(settings), images=method.trains is not None)
    if unused := [f"--train.{name.replace('_', '-')}" for name in train if name not in used]:
        verb = "has" if len(unused) == 1 else "have"
        warn(f"{list_names(unused, 9)} {verb} no effect: {setup.method} is not trained in steps")


class ResolvedSettings(NamedTuple):
    """All settings of a run, and those that the method's authors set."""

    method: MethodSettings
    training: TrainSettings
    authors: PublishedValues


def resolve(
    protocol: Protocol,
    setup: MethodSetup,
    dataset: str,
    shots: int,
    train: Mapping[str, Any] = MappingProxyType({}),
    templates: Sequence[str] = (),
    student: PublishedValues = NOT_PUBLISHED,
) -> ResolvedSettings:
    """All settings of a run that trains on a data set: the defaults, what the method's authors set there, for
    a teacher what those of its ``student`` do, and over them what the user sets (``setup``, ``train``). No
    file is read. The authors' templates replace only a benchmark's own: no other ``templates`` that the data
    set has. Raises SettingsError.
    """
    from dear.data.sources.benchmarks import benchmarks

    kind = setup.declared.settings
    authors = published_values(kind, setup.settings, protocol.name, dataset, shots)
    theirs = authors.settings
    benchmark = benchmarks().get(dataset)
    if templates and (benchmark is None or tuple(templates) != (benchmark.template,)):
        theirs = {name: value for name, value in theirs.items() if name not in kind.template_fields()}
    settings = kind(**{**theirs, **student.teacher_settings, **setup.settings})
    training = resolve_training({**authors.training, **student.teacher_training}, setup.train_over(train))
    return ResolvedSettings(settings, training, authors)
