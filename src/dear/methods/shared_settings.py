"""Settings and templates that methods share. Imports no torch."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Self

from dear.methods.declaration import AT_LEAST_0, COUNT, LAYER, SCALE, SHARE, Bounds, MethodSettings


@dataclass(frozen=True)
class RepresentationSettings(MethodSettings):
    """Settings of a method with a learned representation space; the defaults are the published ones.

    Attributes:
        first: First layer that representation tokens enter, of 12.
        tokens: Number of tokens in the representation space.
        space: Width of the representation space.
        alpha: Weight of the class feature in the loss and in the fused score.
        reg_weight: Weight of the distance from the frozen features.
        scale: Factor on cosines in the scores: the authors' constant; none uses the backbone's own.
        share: Scale layers of 12 to towers of other depths [ours]; if not, use their numbers as they are.
        token_std: Standard deviation of the tokens' initial values.
    """

    training = MappingProxyType({"batch": 4})
    bounds = MappingProxyType(
        {"first": LAYER, "tokens": COUNT, "space": COUNT, "alpha": SHARE, "token_std": AT_LEAST_0}
        | {"reg_weight": AT_LEAST_0, "scale": SCALE}
    )

    first: int = 6
    tokens: int = 5
    space: int = 512
    alpha: float = 0.7
    reg_weight: float = 1.0
    scale: float | None = 100.0
    share: bool = True
    token_std: float = 0.02


PUBLISHED, FROM_DATASET = "per-dataset", "dataset"


@cache
def hand_templates(folder: str) -> Mapping[str, Mapping[str, str]]:
    """The templates of a method's authors by data set (``templates.json`` in its folder): "frozen" for the
    frozen features, "prompt" for the prompts. They apply where the data set's own template is "own".
    """
    file = files(f"{__package__}.{folder}").joinpath("templates.json")
    templates: Mapping[str, Mapping[str, str]] = json.loads(file.read_text(encoding="utf-8"))["templates"]
    return templates


def templates_of(folder: str) -> Bounds:
    """The allowed values of the setting ``templates`` of the method in a folder."""
    return (
        f"{PUBLISHED}, {FROM_DATASET} or the name of one of the authors' data sets",
        lambda value: value in (PUBLISHED, FROM_DATASET) or value in hand_templates(folder),
    )


@dataclass(frozen=True)
class TemplateSettings(MethodSettings):
    """Settings of a method whose authors have templates for each data set.

    Attributes:
        templates: "per-dataset" uses the authors' for each data set, and where they have none the data set's
            own; "dataset" always uses the data set's own; the name of a data set uses the authors' for it.
    """

    templates: str = PUBLISHED

    def for_data(self, dataset: str) -> Self:
        """The settings with the data set's name for "per-dataset", if the authors have templates for it."""
        if self.templates != PUBLISHED:
            return self
        return replace(self, templates=dataset if dataset in hand_templates(self.folder()) else FROM_DATASET)

    def templates_for(self, of_dataset: Sequence[str]) -> tuple[tuple[str, ...], str]:
        """The templates of the frozen features and that of the prompts, for classes of a data set with these
        templates. The authors' are only used on their data: not for the targets of a transfer, nor if the
        user changes the templates of the data set.
        """
        published = hand_templates(self.folder()).get(self.templates)
        if published is not None and tuple(of_dataset) == (published["own"],):
            return (published["frozen"],), published["prompt"]
        return tuple(of_dataset), of_dataset[0]


@cache
def imagenet_templates() -> tuple[str, ...]:
    """The 60 templates of ImageNet that PromptSRC averages over; ``imagenet_templates.json`` names their
    source.
    """
    file = files(__package__).joinpath("imagenet_templates.json")
    return tuple(json.loads(file.read_text(encoding="utf-8"))["templates"])
