"""What a method declares without torch, so that commands can show it quickly: settings with their bounds, the
properties needed before it is built, and what its authors set elsewhere than in base-to-novel (the rows of
``published.json`` in its folder, by protocol, data set and shots).
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from importlib.resources import files
from inspect import get_annotations
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal, Self, get_type_hints

from dear.backbone.names import Access, gives
from dear.reading.typed import Form, Range, check_fields, typed

PROMPT = "a photo of a"
"""The initial words of learned contexts in all public code."""
Novelty = Literal["classes", "data"]
"""What a method is tested on and was not trained on: other classes of its data set, or other data sets."""
Published = Mapping[str, float | int | str | None]

Layer = Annotated[int, Range(1, 12)]
"""The number of a layer, or of layers, in a tower with 12."""
Tokens = Annotated[int, Range(1, 256)]
"""A number of learned tokens."""
SmallInt = Annotated[int, Range(1, 10_000)]
"""A size, a rank, or a number of passes or views: what is allocated or repeated so often stays bounded."""
Template = Annotated[
    str, Form("with one {} for the class name, or empty", lambda text: not text or text.count("{}") == 1)
]
"""A template of prompts, or empty for the data set's own. The authors' templates go by the data set that is
tested, and hold for benchmarks with their own template alone.
"""


@dataclass(frozen=True)
class MethodSettings:
    """Settings of a method, complete; this base class is for methods without settings.

    What a user sets is a mapping of some fields (`check_overrides`); in a run the others have what the
    method's authors set for its protocol and data set (`published_values`). The annotation of a field says
    which values are allowed, as in ``tokens: Tokens = 4``.

    Attributes:
        training: The authors' base-to-novel training settings that differ from the defaults of
            `TrainSettings`, by field.
        published: Of a class outside the package, the rows that a packaged method has in published.json.
        paths: The fields that name a file or a folder, unless they have their default. In a recipe such a
            path is relative to the recipe's folder; a bundle holds none.
    """

    training: ClassVar[Published] = MappingProxyType({})
    published: ClassVar[tuple["PublishedRow", ...]] = ()
    paths: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def folder(cls) -> str:
        """The folder of the method, which prefixes its options; "" outside the package."""
        package, _, folder = cls.__module__.rpartition(".")
        shared = cls.__module__ in (__name__, f"{__package__}.shared_settings")
        return folder if package == __package__ and not shared else ""

    @classmethod
    def packaged(cls) -> "type[MethodSettings]":
        """The settings whose authors' rows hold: the class itself or, for one outside the package, the
        nearest packaged class that it derives from.
        """
        return next(kind for kind in cls.__mro__ if kind is MethodSettings or kind.folder())  # type: ignore[attr-defined]

    @classmethod
    def own_rows(cls) -> tuple["PublishedRow", ...]:
        """The ``published`` rows of the class, and before them those of classes that it derives from."""
        return tuple(row for kind in reversed(cls.__mro__) for row in vars(kind).get("published", ()))

    @classmethod
    def template_fields(cls) -> tuple[str, ...]:
        """The fields that are a `Template`."""
        hints = get_type_hints(cls, include_extras=True)
        return tuple(item.name for item in fields(cls) if hints[item.name] == Template)

    @property
    def allows_steps(self) -> bool:
        """False if with these settings a method that can be trained in steps is not."""
        return True

    def with_files(self, dataset: str) -> Self:
        """The settings with the files that they name, as they are for a data set."""
        del dataset
        return self

    def without_files(self) -> Self:
        """The settings without paths, as the bundle of a trained method holds them. Raises SettingsError if
        the method would need one of the files for other classes.
        """
        return replace(self, **{item.name: item.default for item in fields(self) if item.name in self.paths})

    def check_classes(self, trained_on: Sequence[str], tested_on: Sequence[str]) -> None:
        """Raise SettingsError for class names that the settings do not suit. Called before the first run,
        with the classes of each training and all classes that are tested.
        """
        del trained_on, tested_on

    def teacher_backbone(self) -> tuple[str, str | None]:
        """The backbone of the method's teacher as arguments of `load_clip`; an empty name stands for the
        run's own.
        """
        return "", None

    def __post_init__(self) -> None:
        """Raise SettingsError for the first value that its annotation does not allow."""
        check_fields(self, self.folder())


@dataclass(frozen=True)
class Declaration:
    """The facts of a method that are the same whatever its settings are: known before it is built, and read
    from its class as `Method.declaration`. A class outside the package gives those that are not the defaults,
    as in ``declaration = Declaration(cheap=True)``; `register` fills in its name, settings and module.

    Attributes:
        name: Name of the method on the command line and in records.
        arxiv: Number of its paper, "2109.01134", or for a paper that is not on arXiv the year and month in
            which it appeared, "2506"; tables sort methods by it.
        implementation: Name of its class, in ``method.py`` of its folder.
        settings: Its settings dataclass; a method without settings has no options.
        trains: How it learns from training images: "in steps", by its loss on batches, unless its settings
            say otherwise (`MethodSettings.allows_steps`); "at once", by `UsesAllImages`; or None,
            which needs no images and no number of shots.
        cheap: Whether `dear fit` may choose it and leave images out of it: unless settings say otherwise, it
            is fitted at once, in seconds when features are known, and again when it is fitted again.
        roles: Whether a role table of the backbone's heads is "required", or "optional": then it is used
            where one is known. None if it plays no part. The constructor gets it as ``roles``.
        open_vocabulary: Whether it can score classes that it was not trained on; False if no settings enable
            it: protocols with such classes then refuse it, and "all" does not include it there.
        decoupled_on: What its authors score by the class feature alone: novel "classes", other "data" sets.
        cosine_scores: Whether its scores are weighted means of cosines of features, over a temperature.
        text_depends_on_image: Whether its text features are computed for each image.
        unlabeled: Whether it trains on the training images of all classes, without their labels, in place of
            a few labeled ones of the training classes; protocols that cannot give it these refuse it.
        teacher: Name of the method that trains its teacher on the few labeled images beforehand.
        module: The module of the implementation, for a method outside the package.
        title: What the tables of reports call a method outside the package, in place of its path.
        code_hash: What changes with its code, for a method outside the package (`source_hash`).
        image, text: What it needs of the image and the text tower with its default settings: frozen
            "features", "layers" that it changes, or "heads". None is for methods outside the package that
            do not say; they are checked once built.
    """

    name: str = "an unregistered method"
    arxiv: str = ""
    implementation: str = ""
    settings: type[MethodSettings] = MethodSettings
    trains: Literal["in steps", "at once"] | None = "in steps"
    cheap: bool = False
    roles: Literal["required", "optional"] | None = None
    open_vocabulary: bool = True
    decoupled_on: tuple[Novelty, ...] = ()
    cosine_scores: bool = True
    text_depends_on_image: bool = False
    unlabeled: bool = False
    teacher: str | None = None
    module: str | None = None
    title: str = ""
    code_hash: str = ""
    image: Access | None = None
    text: Access | None = None

    def runs_on(self, image: Access, text: Access) -> bool:
        """True if the method needs no more than these towers give, as far as it declares what it needs."""
        return gives(image, self.image or "features") and gives(text, self.text or "features")

    def takes_steps(self, settings: MethodSettings) -> bool:
        """True if it is trained in steps with these settings."""
        return self.trains == "in steps" and settings.allows_steps

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
        when: Values that fields of the method's settings must have for it to apply, after earlier rows and
            what the user sets.
        settings: Fields of the method's settings.
        training: Fields of the settings of training.
        teacher_settings: Fields of the settings of the method's teacher, over the rows of that method.
        teacher_training: Fields of its settings of training.
        by_data: Further fields of the method's settings by the name of a data set, in place of a row for
            each; the row applies to these data sets only.
    """

    name: str
    source: str
    protocols: tuple[str, ...] = ()
    data: tuple[str, ...] = ()
    shots: tuple[int, int | None] = (0, None)
    when: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    training: Mapping[str, Any] = field(default_factory=dict)
    teacher_settings: Mapping[str, Any] = field(default_factory=dict)
    teacher_training: Mapping[str, Any] = field(default_factory=dict)
    by_data: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def applies(self, values: Mapping[str, Any], protocol: str, dataset: str, shots: int) -> bool:
        """True if the row applies to a run whose settings have these values."""
        low, high = self.shots
        return (
            protocol in (self.protocols or (protocol,))
            and dataset in (self.data or self.by_data or (dataset,))
            and all(values[name] == value for name, value in self.when.items())
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
        quoted = {name: f'"{value}"' if " " in str(value) else value for name, value in self.when.items()}
        parts += [f"with {name} {value}" for name, value in quoted.items()]
        parts.append(f"on {', '.join(self.data)}" if self.data else "")
        return " ".join(filter(None, parts))

    def joined(self, other: "PublishedRow") -> "PublishedRow | None":
        """One row for the shots of both, which adjoin; None if they do not, or the rows differ otherwise."""
        (low, middle), (after, high) = sorted((self.shots, other.shots), key=lambda shots: shots[0])
        same = (self.protocols, self.data, self.when) == (other.protocols, other.data, other.when)
        return replace(self, shots=(low, high)) if same and middle == after - 1 else None


@dataclass(frozen=True)
class PublishedValues:
    """What a method's authors set for a run.

    Attributes:
        settings: Fields of the method's settings, where they differ from the defaults.
        training: Fields of the training settings.
        rows: Names of the published rows that apply; empty where the settings of base-to-novel hold.
        teacher_settings, teacher_training: Those of the method's teacher.
    """

    settings: Mapping[str, Any] = field(default_factory=dict)
    training: Mapping[str, Any] = field(default_factory=dict)
    rows: tuple[str, ...] = ()
    teacher_settings: Mapping[str, Any] = field(default_factory=dict)
    teacher_training: Mapping[str, Any] = field(default_factory=dict)


NOT_PUBLISHED = PublishedValues()
"""Where no authors set anything."""


@cache
def read_published_rows(folder: str) -> tuple[PublishedRow, ...]:
    """The rows of a method's folder, the general ones first; none if it has no such file."""
    file = files("dear.methods").joinpath(folder, "published.json")
    if not folder or not file.is_file():
        return ()
    content = json.loads(file.read_text(encoding="utf-8"))
    rows: list[dict[str, Any]] = content["rows"]
    return tuple(typed({"source": content["source"], **row}, PublishedRow, file) for row in rows)


def published_values(
    kind: type[MethodSettings], overrides: Mapping[str, Any], protocol: str, dataset: str, shots: int
) -> PublishedValues:
    """What a method's authors set for a protocol, a data set and a number of shots, if the user sets
    ``overrides``. A later row overrules earlier ones. Rows also hold for a class outside the package that
    derives from a packaged one, but for the fields and the training settings that it defines itself; its own
    rows come after them.
    """
    defaults = {item.name: item.default for item in fields(kind)}
    outside = kind.__mro__[: kind.__mro__.index(kind.packaged())]
    own_fields = {name for each in outside for name in get_annotations(each)}
    own_training = {name for each in outside for name in vars(each).get("training", {})}
    values = PublishedValues(training=kind.training)
    of_package = read_published_rows(kind.packaged().folder())
    own_rows = kind.own_rows()
    for row in (*of_package, *own_rows):
        if row.applies({**defaults, **values.settings, **overrides}, protocol, dataset, shots):
            is_own = row in own_rows
            in_row = {**row.settings, **row.by_data.get(dataset, {})}
            settings = {name: value for name, value in in_row.items() if is_own or name not in own_fields}
            training = {n: value for n, value in row.training.items() if is_own or n not in own_training}
            values = PublishedValues(
                {**values.settings, **settings},
                {**values.training, **training},
                (*values.rows, row.name),
                {**values.teacher_settings, **row.teacher_settings},
                {**values.teacher_training, **row.teacher_training},
            )
    return values
