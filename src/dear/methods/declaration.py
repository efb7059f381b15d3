"""What a method declares without torch, so that commands can show it quickly: settings with their bounds, the
properties needed before it is built, and what its authors set elsewhere than in base-to-novel (the rows of
``published.json`` in its folder, by protocol, data set and shots).
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any, ClassVar, Literal, Self, get_args, get_origin

from dear.backbone.choice import Access, gives
from dear.errors import SettingsError
from dear.reading.typed import typed

PROMPT = "a photo of a"
"""The initial words of learned contexts in all public code."""
MAX_TOKENS, MAX_WHOLE_NUMBER = 256, 10_000
"""Largest values of settings that count learned tokens, and of other whole numbers."""

Published = Mapping[str, float | int | str | None]

Bounds = tuple[str, Callable[[Any], bool]]
ANY: Bounds = ("", lambda _: True)
LARGEST = 1e30
"""Largest absolute value of a setting: optimizers overflow float32 beyond it."""
COUNT: Bounds = ("at least 1", lambda value: value >= 1)
LAYER: Bounds = ("from 1 to 12", lambda value: 1 <= value <= 12)
SHARE: Bounds = ("from 0 to 1", lambda value: 0 <= value <= 1)
AT_LEAST_0: Bounds = ("at least 0", lambda value: 0 <= value < math.inf)
ABOVE_0: Bounds = ("above 0", lambda value: 0 < value < math.inf)
SCALE: Bounds = ("above 0, or none", lambda value: value is None or 0 < value < math.inf)


@dataclass(frozen=True)
class MethodSettings:
    """Settings of a method; this base class is for methods without settings.

    A field that is passed when settings are made counts as set by the user (`set_by_user`), even if it equals
    its default, and is used as it is; the others take what the method's authors set for a protocol and a data
    set. ``dataclasses.replace`` would pass every field: use `with_values`, which keeps what counts as set.

    Attributes:
        training: The authors' base-to-novel training settings that differ from the defaults of
            `TrainSettings`, by field.
        bounds: The allowed values of a field, in words and as a function; not needed for Literal types.
        teacher_training: The authors' training settings of the method's teacher that differ from those of the
            method that the teacher is trained with.
        paths: The fields that name a file or a folder, unless they have their default. In a recipe such a
            path is relative to the recipe's folder; a bundle holds none.
    """

    training: ClassVar[Published] = MappingProxyType({})
    teacher_training: ClassVar[Published] = MappingProxyType({})
    bounds: ClassVar[Mapping[str, Bounds]] = MappingProxyType({})
    paths: ClassVar[tuple[str, ...]] = ()

    def __new__(cls, *args: Any, **values: Any) -> Self:
        settings = super().__new__(cls)
        positional = [item.name for item in fields(cls) if item.init and not item.kw_only]
        settings._remember(frozenset([*positional[: len(args)], *values]))
        return settings

    def _remember(self, set_by_user: frozenset[str]) -> None:
        object.__setattr__(self, "_set_by_user", set_by_user)

    @property
    def set_by_user(self) -> frozenset[str]:
        """Names of the fields that were given when the settings were made."""
        field_names: frozenset[str] = self.__dict__["_set_by_user"]
        return field_names

    def with_values(self, **values: Any) -> Self:
        """The settings with other values. The same fields count as set by the user."""
        settings = replace(self, **values)
        settings._remember(self.set_by_user)
        return settings

    def fill_unset(self, values: Mapping[str, Any]) -> Self:
        """The settings with these values in the fields that the user did not set."""
        return self.with_values(
            **{name: value for name, value in values.items() if name not in self.set_by_user}
        )

    @classmethod
    def folder(cls) -> str:
        """The folder of the method, which prefixes its options; "" outside the package."""
        package, _, folder = cls.__module__.rpartition(".")
        shared = cls.__module__ in (__name__, f"{__package__}.shared_settings")
        return folder if package == __package__ and not shared else ""

    def for_data(self, dataset: str) -> Self:
        """The settings for a data set, for methods whose authors tune some per data set."""
        del dataset
        return self

    def without_files(self) -> Self:
        """The settings without paths, as the bundle of a trained method holds them. Raises SettingsError if
        the method would need one of the files for other classes.
        """
        return self.with_values(
            **{item.name: item.default for item in fields(self) if item.name in self.paths}
        )

    def check_classes(self, trained_on: Sequence[str], tested_on: Sequence[str]) -> None:
        """Raise SettingsError for class names that the settings do not suit. Called before the first run,
        with the classes of each training and all classes that are tested.
        """
        del trained_on, tested_on

    def tuned_for(self, target: str) -> Mapping[str, Any]:
        """Values of fields that the authors chose for testing on one target, a data set other than the one of
        training; empty for most methods. Results there are marked as tuned on targets.
        """
        del target
        return {}

    def teacher_backbone(self) -> tuple[str, str | None]:
        """The backbone of the method's teacher as arguments of `load_clip`; an empty name stands for the
        run's own.
        """
        return "", None

    def trained_with(self) -> Published:
        """The authors' training settings for these settings; ``training``, unless overridden."""
        return self.training

    def __post_init__(self) -> None:
        """Raise SettingsError for the first value that is out of bounds or too large, or is no choice."""
        for setting in fields(self):
            value = getattr(self, setting.name)
            name = ".".join(filter(None, [self.folder(), setting.name]))
            if setting.type is int:
                most = MAX_TOKENS if name.endswith("tokens") else MAX_WHOLE_NUMBER
                if value > most:
                    raise SettingsError(f"{name} is {value}: it must be at most {most}.")
            words, allows = self.bounds.get(setting.name, ANY)
            if get_origin(setting.type) is Literal:
                choices = get_args(setting.type)
                words, allows = f"one of {', '.join(choices)}", choices.__contains__
            if not allows(value):
                raise SettingsError(f"{name} is {value!r}: it must be {words}.")
            if isinstance(value, float) and abs(value) > LARGEST:
                raise SettingsError(f"{name} is {value!r}: it must be at most {LARGEST:g}.")


@dataclass(frozen=True)
class Declaration:
    """The properties of a method that are known before it is built.

    Properties only needed of a built method (its rule for novel classes, its tokens in attention maps) are
    declared on its class: see `Method`.

    Attributes:
        name: Name of the method on the command line and in records.
        arxiv: Number of its paper, "2109.01134", or for a paper that is not on arXiv the year and month in
            which it appeared, "2506"; tables sort methods by it.
        implementation: Name of its class, in ``method.py`` of its folder.
        settings: Its settings dataclass; a method without settings has no options.
        trains: Whether it learns from training images, and so needs them and a number of shots.
        needs_roles: Whether it needs a role table of the backbone's heads.
        without_roles: Whether it also runs without a role table, by a rule of its own, where none is known.
        open_vocabulary: Whether it can score classes that it was not trained on; False if no settings enable
            it: protocols with such classes then refuse it, and "all" does not include it there.
        unlabelled: Whether it trains on the training images of all classes, without their labels, in place of
            a few labelled ones of the training classes; protocols that cannot give it these refuse it.
        teacher: Name of the method that trains its teacher on the few labelled images beforehand.
        module: The module of the implementation, for a method outside the package.
        image, text: What it needs of the image and the text tower with its default settings: frozen
            "features", "layers" that it changes, or "heads". None is for methods outside the package that
            do not say; they are checked once built.
    """

    name: str
    arxiv: str
    implementation: str
    settings: type[MethodSettings] = MethodSettings
    trains: bool = True
    needs_roles: bool = False
    without_roles: bool = False
    open_vocabulary: bool = True
    unlabelled: bool = False
    teacher: str | None = None
    module: str | None = None
    image: Access | None = None
    text: Access | None = None

    def runs_on(self, image: Access, text: Access) -> bool:
        """True if the method needs no more than these towers give, as far as it declares what it needs."""
        return gives(image, self.image or "features") and gives(text, self.text or "features")

    @property
    def folder(self) -> str:
        """The name of its folder and recipe and the prefix of its options: "mmrlpp" for mmrl++, as in
        --mmrlpp.beta, "dear_plus" for dear+, as in --dear-plus.views; for "package.module:Class", the class
        in lower case.
        """
        name = self.name.rpartition(":")[2].lower().replace("++", "pp").replace("+", "_plus")
        return name.replace("-", "_")

    @property
    def home(self) -> str:
        """The module of the implementation."""
        return self.module or f"{__package__}.{self.folder}.method"


@dataclass(frozen=True)
class PublishedRow:
    """Settings of a method where its authors differ from those of base-to-novel.

    Attributes:
        name: Name of the row in records.
        source: Where it is published: repository, commit, scripts.
        protocols: Names of the protocols that it applies to; all if empty.
        data: Names of the training data sets that it applies to; all if empty.
        shots: The range of training images per class.
        when: Values that fields of the method's settings must have for it to apply.
        settings: Fields of the method's settings.
        training: Fields of the settings of training.
    """

    name: str
    source: str
    protocols: tuple[str, ...] = ()
    data: tuple[str, ...] = ()
    shots: tuple[int, int | None] = (0, None)
    when: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    training: Mapping[str, Any] = field(default_factory=dict)

    def applies(self, settings: MethodSettings, protocol: str, dataset: str, shots: int) -> bool:
        """True if the row applies to a run."""
        low, high = self.shots
        return (
            protocol in (self.protocols or (protocol,))
            and dataset in (self.data or (dataset,))
            and all(getattr(settings, name) == value for name, value in self.when.items())
            and low <= shots
            and (high is None or shots <= high)
        )

    def scope(self, commands: Mapping[str, Sequence[str]]) -> str:
        """Where the row applies, in words: "in few-shot and fit with 1 shot"; "" if everywhere. ``commands``
        are the commands that train as in each protocol.
        """
        protocols = [name for protocol in self.protocols for name in (protocol, *commands[protocol])]
        low, high = self.shots
        if high is None:
            shots = f"with {low} shots or more" if low else ""
        elif low == high:
            shots = f"with {low} shot{'s' * (low != 1)}"
        else:
            shots = f"with {low} to {high} shots"
        parts = [f"in {' and '.join(protocols)}" if protocols else "", shots]
        parts += [f"with {name} {value}" for name, value in self.when.items()]
        parts.append(f"on {', '.join(self.data)}" if self.data else "")
        return " ".join(filter(None, parts))


@dataclass(frozen=True)
class AsPublished:
    """The settings of a method for a run, and the training settings of its authors there.

    Attributes:
        training: Fields of the training settings.
        rows: Names of the published rows that apply; empty where the settings of base-to-novel hold.
    """

    settings: MethodSettings
    training: Mapping[str, Any]
    rows: tuple[str, ...]


@cache
def read_published_rows(folder: str) -> tuple[PublishedRow, ...]:
    """The rows of a method's folder, the general ones first; none if it has no such file."""
    file = files("dear.methods").joinpath(folder, "published.json")
    if not folder or not file.is_file():
        return ()
    content = json.loads(file.read_text(encoding="utf-8"))
    rows: list[dict[str, Any]] = content["rows"]
    return tuple(typed({"source": content["source"], **row}, PublishedRow, file) for row in rows)


def apply_published(settings: MethodSettings, protocol: str, dataset: str, shots: int) -> AsPublished:
    """Settings with what the method's authors set for a protocol, a data set and a number of shots.

    A later row overrules earlier ones. Fields that the user set stay.
    """
    kind = type(settings)
    rows = [
        row for row in read_published_rows(kind.folder()) if row.applies(settings, protocol, dataset, shots)
    ]
    changed: dict[str, Any] = {}
    training: dict[str, Any] = {**settings.trained_with()}
    for row in rows:
        changed |= row.settings
        training |= row.training
    return AsPublished(settings.fill_unset(changed), training, tuple(row.name for row in rows))
