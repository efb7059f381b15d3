"""What a method declares without torch, so that commands can show it at once: its settings with their bounds,
and what has to be known of it before it is built.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any, ClassVar, Literal, Self, get_args, get_origin

from dear.errors import SettingsError

PROMPT = "a photo of a"
"""The words that learned contexts start from in all public code."""

Published = Mapping[str, float | int | str]

Bounds = tuple[str, Callable[[Any], bool]]
ANY: Bounds = ("", lambda _: True)
COUNT: Bounds = ("at least 1", lambda value: value >= 1)
LAYER: Bounds = ("from 1 to 12", lambda value: 1 <= value <= 12)
SHARE: Bounds = ("from 0 to 1", lambda value: 0 <= value <= 1)
AT_LEAST_0: Bounds = ("at least 0", lambda value: 0 <= value < math.inf)
ABOVE_0: Bounds = ("above 0", lambda value: 0 < value < math.inf)


@dataclass(frozen=True)
class MethodSettings:
    """Settings of a method; the base is those of a method that has none.

    Attributes:
        training: What the method's authors train with in base-to-novel, where it differs from
            :class:`dear.training.settings.TrainSettings`: its fields by name.
        bounds: What a field must be, in words and as a function; a Literal type says it itself.
        defaults_of_old: Values of fields that a bundle or record lacks because it was made before them.
    """

    training: ClassVar[Published] = MappingProxyType({})
    bounds: ClassVar[Mapping[str, Bounds]] = MappingProxyType({})
    defaults_of_old: ClassVar[Published] = MappingProxyType({})

    @classmethod
    def folder(cls) -> str:
        """The folder of the method, from which its options take their name; "" outside the package."""
        module = cls.__module__
        inside = module.startswith(f"{__package__}.") and module.endswith(".settings")
        return module.split(".")[-2] if inside else ""

    def for_data(self, dataset: str) -> Self:
        """The settings on a data set, for a method whose authors set some for each."""
        del dataset
        return self

    def __post_init__(self) -> None:
        """Raise SettingsError for the first value that is out of its bounds or not among its choices."""
        for field in fields(self):
            value = getattr(self, field.name)
            said, held = self.bounds.get(field.name, ANY)
            if get_origin(field.type) is Literal:
                choices = get_args(field.type)
                said, held = f"one of {', '.join(choices)}", choices.__contains__
            if not held(value):
                name = ".".join(filter(None, [self.folder(), field.name]))
                raise SettingsError(f"{name} is {value!r}: it must be {said}.")


@dataclass(frozen=True)
class Declaration:
    """A method, as the rest of the package knows it before it is built.

    What is only asked of a method that is built (its rule for novel classes, its tokens in pictures of
    attention) is declared on its class: see :class:`dear.methods.base.Method`.

    Attributes:
        name: What the method is called on the command line and in records.
        arxiv: Number of its paper, "2109.01134": methods stand in tables by the date of it.
        implementation: Name of its class, in ``method.py`` of its folder.
        settings: Its dataclass of settings; a method without settings has no options.
        trains: It learns from training images, and shots mean something.
        needs_roles: It is built on a role table of the backbone's heads.
        open_vocabulary: It can score other classes than those that it was trained on; if not, whatever its
            settings, protocols with such classes refuse it and "all" methods there are without it.
    """

    name: str
    arxiv: str
    implementation: str
    settings: type[MethodSettings] = MethodSettings
    trains: bool = True
    needs_roles: bool = False
    open_vocabulary: bool = True

    @property
    def folder(self) -> str:
        """Its folder, recipe and options: "mmrlpp" is mmrl++, as --mmrlpp.beta."""
        return self.name.replace("+", "p").replace("-", "_")
