"""The templates that a method's authors set for each data set, as a setting: shared by ProGrad and TCP."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Self

from dear.methods.declaration import Bounds, MethodSettings

PUBLISHED, OWN = "per-dataset", "dataset"


@cache
def hand_templates(folder: str) -> Mapping[str, Mapping[str, str]]:
    """What ``templates.json`` of a method's folder has for each data set of its authors: the template of the
    frozen features, that of the prompts, and the data set's own, with which they go.
    """
    file = files(f"{__package__}.{folder}").joinpath("templates.json")
    found: Mapping[str, Mapping[str, str]] = json.loads(file.read_text(encoding="utf-8"))["templates"]
    return found


def templates_of(folder: str) -> Bounds:
    """What the setting may be for the method of a folder."""
    return (
        f"{PUBLISHED}, {OWN} or the name of one of the authors' data sets",
        lambda value: value in (PUBLISHED, OWN) or value in hand_templates(folder),
    )


@dataclass(frozen=True)
class TemplateSettings(MethodSettings):
    """Settings of a method with templates for each data set.

    Attributes:
        templates: "per-dataset" takes what the authors set for each data set, and the data set's own on data
            sets without; "dataset" takes the data set's own on all; a data set's name takes the authors' for
            it.
    """

    templates: str = PUBLISHED

    def for_data(self, dataset: str) -> Self:
        """With the name of the data set in place of "per-dataset", if the authors have templates for it."""
        if self.templates != PUBLISHED:
            return self
        return replace(self, templates=dataset if dataset in hand_templates(self.folder()) else OWN)

    def templates_for(self, own: Sequence[str]) -> tuple[tuple[str, ...], str]:
        """The templates of the frozen features and that of the prompts, for classes of data with these
        templates of its own. The authors' are taken where theirs is the data: not for the targets of a
        transfer, nor where other templates are given than the data set comes with.
        """
        theirs = hand_templates(self.folder()).get(self.templates)
        if theirs is not None and tuple(own) == (theirs["own"],):
            return (theirs["frozen"],), theirs["prompt"]
        return tuple(own), own[0]
