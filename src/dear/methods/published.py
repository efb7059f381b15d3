"""What a method's authors set elsewhere than in base-to-novel: rows of ``published.json`` in its folder, by
protocol, data set and shots. Imports no torch.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from importlib.resources import files
from typing import Any

from dear.methods.declaration import MethodSettings


@dataclass(frozen=True)
class PublishedRow:
    """Settings of a method where its authors differ from those of base-to-novel.

    Attributes:
        name: What records call it.
        source: Where it is published: repository, commit, scripts.
        protocols: Names of the protocols that it holds for; all if empty.
        data: Names of the data sets that are trained on; all if empty.
        shots: The least and the most training images a class.
        when: Fields of the method's settings that it goes with, and their values.
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

    def holds(self, settings: MethodSettings, protocol: str, dataset: str, shots: int) -> bool:
        """Whether it is about a run."""
        least, most = self.shots
        return (
            protocol in (self.protocols or (protocol,))
            and dataset in (self.data or (dataset,))
            and all(getattr(settings, name) == value for name, value in self.when.items())
            and least <= shots
            and (most is None or shots <= most)
        )


@dataclass(frozen=True)
class AsPublished:
    """Settings of a method for a run, and what its authors train with there.

    Attributes:
        training: Fields of the settings of training.
        rows: Names of the published rows that are in it; none where base-to-novel's settings hold.
    """

    settings: MethodSettings
    training: Mapping[str, Any]
    rows: tuple[str, ...]


@cache
def published_rows(folder: str) -> tuple[PublishedRow, ...]:
    """The rows of a method's folder, the general ones first; none if it has no such file."""
    file = files("dear.methods").joinpath(folder, "published.json")
    if not folder or not file.is_file():
        return ()
    content = json.loads(file.read_text(encoding="utf-8"))
    return tuple(
        PublishedRow(
            row["name"],
            row.get("source", content["source"]),
            tuple(row.get("protocols", ())),
            tuple(row.get("data", ())),
            tuple(row.get("shots", (0, None))),
            row.get("when", {}),
            row.get("settings", {}),
            row.get("training", {}),
        )
        for row in content["rows"]
    )


def as_published(settings: MethodSettings, protocol: str, dataset: str, shots: int) -> AsPublished:
    """Settings with what the method's authors set for a protocol, a data set and a number of shots.

    A later row overrules earlier ones. A field that has another value than its default was chosen, and stays.
    """
    kind = type(settings)
    rows = [row for row in published_rows(kind.folder()) if row.holds(settings, protocol, dataset, shots)]
    changed: dict[str, Any] = {}
    training: dict[str, Any] = {**settings.trained_with()}
    for row in rows:
        changed |= row.settings
        training |= row.training
    chosen = {one.name for one in fields(settings) if getattr(settings, one.name) != one.default}
    kept = {name: value for name, value in changed.items() if name not in chosen}
    return AsPublished(replace(settings, **kept), training, tuple(row.name for row in rows))
