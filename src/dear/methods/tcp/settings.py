"""Settings of TCP, and what it declares."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Self

from dear.methods.declaration import AT_LEAST_0, COUNT, Declaration, MethodSettings

PUBLISHED, OWN = "per-dataset", "dataset"


@cache
def hand_templates() -> Mapping[str, Mapping[str, str]]:
    """What ``templates.json`` has for each data set of the authors."""
    file = files(__package__).joinpath("templates.json")
    found: Mapping[str, Mapping[str, str]] = json.loads(file.read_text(encoding="utf-8"))["templates"]
    return found


@dataclass(frozen=True)
class TcpSettings(MethodSettings):
    """Settings of TCP; the defaults are the published ones.

    Attributes:
        tokens: Context tokens, and class-aware tokens that take their places.
        layer: The layer of the text tower, of 12, at whose input the class-aware tokens enter.
        reduction: Width of the text feature over the hidden width of the network that makes them.
        text_weight: Weight of the distance of text features from the frozen ones.
        templates: "per-dataset" takes the authors' two templates for each data set, and the data set's own on
            data sets without; "dataset" takes the data set's own on all; a data set's name takes the authors'
            for it.
        share: Keep the share of 12 in towers of other depths [ours]; if not, count layers as they are.
        token_std: Standard deviation of the context's random start.
    """

    training = MappingProxyType({"optimizer": "adam", "lr": 0.002, "epochs": 50, "batch": 32})
    bounds = MappingProxyType(
        {"tokens": COUNT, "reduction": COUNT, "text_weight": AT_LEAST_0, "token_std": AT_LEAST_0}
        | {"layer": ("from 2 to 12", lambda value: 2 <= value <= 12)}
        | {
            "templates": (
                f"{PUBLISHED}, {OWN} or the name of one of the authors' data sets",
                lambda value: value in (PUBLISHED, OWN) or value in hand_templates(),
            )
        }
    )

    tokens: int = 4
    layer: int = 9
    reduction: int = 4
    text_weight: float = 8.0
    templates: str = PUBLISHED
    share: bool = True
    token_std: float = 0.02

    def for_data(self, dataset: str) -> Self:
        """With the name of the data set in place of "per-dataset", if the authors have templates for it."""
        if self.templates != PUBLISHED:
            return self
        return replace(self, templates=dataset if dataset in hand_templates() else OWN)

    def templates_for(self, own: Sequence[str]) -> tuple[tuple[str, ...], str]:
        """The templates of the frozen features and that of the prompts, for classes of data with these
        templates of its own. The authors' are taken where theirs is the data: not for the targets of a
        transfer, nor where other templates are given than the data set comes with.
        """
        theirs = hand_templates().get(self.templates)
        if theirs is not None and tuple(own) == (theirs["own"],):
            return (theirs["frozen"],), theirs["prompt"]
        return tuple(own), own[0]


METHOD = Declaration("tcp", "2311.18231", "TCP", TcpSettings)
