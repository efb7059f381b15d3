"""A method with its settings (`MethodSetup`), and a run of it on some data (`ResolvedRun`), which holds
everything that its results depend on, apart from the code. Light to import.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from dear.errors import SettingsError, warn
from dear.evaluation.protocols.base import Protocol
from dear.methods.declaration import (
    NOT_PUBLISHED,
    Declaration,
    MethodSettings,
    PublishedValues,
    published_values,
)
from dear.methods.registry import METHODS, known_method, methods_with_roles
from dear.reading.typed import check_overrides
from dear.text import list_names
from dear.training.settings import TrainSettings, resolve_training, used_training

if TYPE_CHECKING:
    from dear.backbone.clip import Clip
    from dear.data.dataset import Dataset
    from dear.roles.table import RoleTable

RoleVariant = Literal["roles", "all-isolated", "all-mixed", "shuffled", "random"]
"""The role table unchanged, one of the paper's ablations of it, or roles drawn at random."""
Select = Literal["last", "val"]
LONGEST_PART = 100
"""Most letters of a data set's name in a file name, which has at most 255 bytes."""


@dataclass(frozen=True)
class MethodSetup:
    """One method with its settings, to run on each data set and seed.

    Attributes:
        method: The method's name.
        settings: The method's settings that the user sets, by field, as in ``{"tokens": 4}``; the others are
            those of the method's authors, or the defaults (`resolve`).
        role_variant: For methods with head roles, which variant of the role table the mask is built from.
        quantile: For methods with head roles, assign the roles anew, with this percentage of the heads at
            each end of concept entropy.
        attributes: For methods with head roles, K: the number of core attributes.
        roles: For methods with head roles, a role table of its own: a file, or the name of a packaged one.
        label: Name of these settings in records and tables, for example "CE + reg".
    """

    method: str
    settings: Mapping[str, Any] = field(default_factory=dict, hash=False)
    role_variant: RoleVariant = "roles"
    quantile: float | None = None
    attributes: int | None = None
    roles: Path | None = None
    label: str | None = None

    def __post_init__(self) -> None:
        """Raise UnknownNameError for the method, SettingsError for settings that it does not have or whose
        values it does not take, and for options of head roles that it does not have.
        """
        object.__setattr__(self, "method", known_method(self.method))
        settings = check_overrides(self.settings, self.declared.settings, f"the settings of {self.method}")
        object.__setattr__(self, "settings", settings)
        if self.declared.roles is None and not self._takes_roles_unchanged:
            raise SettingsError(
                f"{self.method} has no head roles: role_variant, quantile, attributes and roles apply to "
                f"{' or '.join(methods_with_roles())}."
            )

    @property
    def variant(self) -> str | None:
        """How the run differs from the method as published; None if it does not."""
        if self.label:
            return self.label
        parts = [
            "" if self.roles is None else f"roles {self.roles.stem}",
            "" if self.role_variant == "roles" else self.role_variant,
            "" if self.quantile is None else f"q = {self.quantile:g}%",
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


@dataclass(frozen=True)
class RunConditions:
    """Everything a run needs except its method.

    Attributes:
        clip: The backbone, as loaded.
        datasets: The one that is trained on, followed by the others that are tested on.
        roles: The role table of the backbone, if it is known.
        train: The training settings that the user sets, by field.
        select: Which epoch is tested: the last, or the best on validation images of the training classes.
    """

    protocol: Protocol
    clip: "Clip"
    datasets: tuple["Dataset", ...]
    seed: int
    shots: int = 16
    roles: "RoleTable | None" = None
    train: Mapping[str, Any] = field(default_factory=dict)
    select: Select = "last"

    @property
    def source(self) -> "Dataset":
        return self.datasets[0]

    @property
    def targets(self) -> tuple["Dataset", ...]:
        return self.datasets[1:]


@dataclass(frozen=True, kw_only=True)
class ResolvedRun(RunConditions):
    """A run with everything that its results depend on, apart from the code.

    Attributes:
        settings: The method's settings for the data set that it trains on.
        target_settings: Those for a target by its name, where its authors have other templates for it.
        training: The training settings: as the user sets them, or as published for the method.
        published: Names of the rows of published settings that apply, beside those of base-to-novel.
        teacher: The run that trains the method's teacher; None for a method without one.
    """

    setup: MethodSetup
    settings: MethodSettings
    target_settings: Mapping[str, MethodSettings]
    training: TrainSettings
    published: tuple[str, ...] = ()
    teacher: "ResolvedRun | None" = None

    @cached_property
    def table(self) -> "RoleTable | None":
        """The role table that the method uses, of its variant; None for a method without head roles."""
        return self.setup.table(self.roles, self.seed)

    @property
    def used_training(self) -> dict[str, Any]:
        """The settings of training that change the run (`used_training`)."""
        return self._used(asdict(self.training))

    def _used(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        steps = takes_steps(self.setup, self.settings)
        return used_training(settings, steps=steps, images=self.setup.declared.trains is not None)

    @property
    def weights(self) -> dict[str, Any]:
        """The identity of the backbone, as plain values."""
        return asdict(self.clip.identity)

    @property
    def overrides(self) -> dict[str, dict[str, Any]]:
        """The settings of the method, and of its training, that the user set."""
        return {"method": dict(self.setup.settings), "train": self._used(self.train)}

    @cached_property
    def key(self) -> str:
        """16 hexadecimal digits that change with everything the run's results depend on, except the code of
        this package. The source of a method outside the package counts.
        """
        what = self.protocol.fingerprint
        if self.protocol.novelty in self.setup.declared.decoupled_on:
            what += " decoupled"
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
        return run_name(self.protocol, self.source.name, self.setup, self.seed, self.shots, self.key)

    def file(self, folder: Path, ending: str = ".json") -> Path:
        """The run's file in a folder, its record's by default."""
        return folder / (self.name + ending)

    def _key(self, what: str, datasets: Sequence["Dataset"]) -> str:
        fields = [
            what,
            self.setup.method + self.setup.declared.source,
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
        return hashlib.sha256(f"[{', '.join(texts)}]".encode()).hexdigest()[:16]


def takes_steps(setup: MethodSetup, settings: MethodSettings) -> bool:
    """Whether a method with these settings is trained in steps."""
    return setup.declared.trains == "in steps" and settings.allows_steps


def tell_of_no_effect(setup: MethodSetup, settings: MethodSettings, train: Mapping[str, Any]) -> None:
    """Warn of settings of training that change nothing."""
    steps = takes_steps(setup, settings)
    used = used_training(train, steps=steps, images=setup.declared.trains is not None)
    if unused := [f"--train.{name.replace('_', '-')}" for name in train if name not in used]:
        verb = "has" if len(unused) == 1 else "have"
        warn(f"{list_names(unused, 9)} {verb} no effect: {setup.method} is not trained in steps")


def run_name(protocol: Protocol, dataset: str, setup: MethodSetup, seed: int, shots: int, key: str) -> str:
    """The name of a run's files, for example "mixed-paints-dear-all-mixed-16shot-seed1-0123abcd"; reports
    know a record by its end (`dear.evaluation.records.is_record_name`).
    """
    method = setup.method.replace("++", "pp").replace("+", "-plus")  # as its folder
    parts = [dataset, method, setup.variant or "", f"{shots}shot", f"seed{seed}", key[:8]]
    if protocol.trained_on is not None:
        parts.insert(0, protocol.name)
    return "-".join(map(file_part, filter(None, parts)))


def file_part(text: str) -> str:
    """A text as a part of a file's name, with "-" for what is no letter or digit of English and no dot. If it
    is long, it is cut after a word.
    """
    part = re.sub(r"[^A-Za-z0-9.]+", "-", text).strip("-")
    if len(part) <= LONGEST_PART:
        return part
    return part[: LONGEST_PART + 1].rpartition("-")[0] or part[:LONGEST_PART]


def with_templates_of(settings: MethodSettings, other: MethodSettings) -> MethodSettings:
    """Settings with the templates of others of their kind."""
    return replace(settings, **{name: getattr(other, name) for name in settings.template_fields()})


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
    a teacher what those of its ``student`` do, and over them what the user sets (``setup.settings``,
    ``train``). No file is read. The authors' templates are in the place of a benchmark's own alone: not where
    ``templates``, those of the data set, are others. Raises SettingsError.
    """
    from dear.data.sources.benchmarks import benchmarks

    kind = setup.declared.settings
    authors = published_values(kind, setup.settings, protocol.name, dataset, shots)
    theirs = authors.settings
    benchmark = benchmarks().get(dataset)
    if templates and (benchmark is None or tuple(templates) != (benchmark.template,)):
        theirs = {name: value for name, value in theirs.items() if name not in kind.template_fields()}
    settings = kind(**{**theirs, **student.teacher_settings, **setup.settings})
    training = resolve_training({**authors.training, **student.teacher_training}, train)
    return ResolvedSettings(settings, training, authors)
