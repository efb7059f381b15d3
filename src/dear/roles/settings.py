"""What commands need of roles without torch: the settings of discovery, and how a table is named: by a file
or by a kind of table in the package.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from dear.errors import RoleTableError, SettingsError
from dear.reading.files import ReadingError
from dear.reading.plain import read_json
from dear.reading.typed import LARGEST, NonNegativeInt, PositiveInt, Range, check_fields, overrides_class

CoreMask = Literal["exclusive", "eq9"]
"""Two interpretations of a core head's mask: equation 9 with supplement B [ours], or equation 9 alone."""
KINDS = ("discovered", "ground-truth", "published", "textspan")
"""Kinds of packaged tables, in order of preference."""

Quantile = Annotated[float, Range(0, 0.5, above=True)]
"""The paper's q: the share of the heads at each end of concept entropy, at both by our reading [ours]."""
DEFAULT_K = 5
"""Core attributes if the heads have as many concepts, as in the paper."""


@dataclass(frozen=True)
class RoleSettings:
    """How phrases become concepts and concepts become roles.

    Attributes:
        convention: What becomes of constants that belong to no head, such as biases, before TEXTSPAN. With
            public, each head gets a part of them, as in the public code of TEXTSPAN.
            With exact, the heads get no part of them [ours].
        rule: How a head gets its role: quantile, by quantiles of concept entropy, as the paper's main text
            says; or concept, by its dominant concept alone, as in its supplement B (docs/roles.md). By
            concept, a core attribute makes a head core, style makes it generalization, and any other concept
            makes it other-specialized.
        quantile: The paper's q. The heads with the lowest concept entropy, a share of q, are specialized; the
            heads with the highest concept entropy, again a share of q [ours], are generalization heads.
        k: Number of core attributes, which are chosen automatically. By default 5, or as many as the heads
            have concepts. 0 takes the K from 3 to 7 with the highest DBCV.
        attributes: Core attributes by name, such as color,shape,texture,object,location.
        general: Concepts that make a specialized head a generalization head (supplement B: "abstract
            concepts or global composition", such as style, which is the only one in its Table 2).
        space: In which space phrases are clustered: linear discriminants of the pool's concepts [ours], or
            the sentence embeddings as they are, as in the paper.
        clustered: Which phrases are clustered: the phrases of the heads together with the phrases of the pool
            [ours], or the phrases of the heads alone, as in the paper. A cluster is named after the nearest
            concept of the pool. Phrases of a CSV file are not clustered: they have the concepts that it gives
            them.
        entropy_over: Which concepts the entropy is over: concepts is all of them, and a phrase belongs to the
            nearest cluster; attributes is the core attributes, and a phrase belongs to the nearest cluster of
            one of them. Equation 3 says attributes, but the roles "text" and "style" of the paper's table
            need concepts; so concepts and shares of heads stay those of all clusters.
        shrinkage: How far the covariance within concepts, of which the discriminants are made, is shrunk
            towards a sphere [ours].
        min_sizes: HDBSCAN's min_cluster_size. Of several, the one with the highest DBCV is used.
        min_samples: HDBSCAN's min_samples.
        phrases_a_head: Phrases that are chosen for each head. None takes a third of the head's dimensions.
    """

    convention: Literal["public", "exact"] = "public"
    rule: Literal["quantile", "concept"] = "quantile"
    quantile: Quantile = 0.2
    k: NonNegativeInt | None = None
    attributes: tuple[str, ...] = ()
    general: tuple[str, ...] = ("style",)
    space: Literal["discriminants", "embeddings"] = "discriminants"
    clustered: Literal["with-pool", "heads"] = "with-pool"
    entropy_over: Literal["concepts", "attributes"] = "concepts"
    shrinkage: Annotated[float, Range(0, 1, above=True)] = 0.3
    min_sizes: tuple[Annotated[int, Range(2, LARGEST)], ...] = (15, 25, 40, 60)
    min_samples: PositiveInt = 5
    phrases_a_head: PositiveInt | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        if not self.min_sizes:
            raise SettingsError("min_sizes is empty: give at least one size.")
        if len({*self.attributes}) < len(self.attributes):
            raise SettingsError(f"attributes is {self.attributes}: it must be names that differ.")


if TYPE_CHECKING:
    RoleOverrides = Mapping[str, Any]
    """The settings that the user sets, by field; commands make their options of it."""
else:
    RoleOverrides = overrides_class(RoleSettings)

Preset = Literal["default", "paper"]
PRESETS: Mapping[Preset, RoleSettings] = {
    "default": RoleSettings(),
    # With HDBSCAN's own min_samples, which is min_cluster_size, the phrases of a public result of TEXTSPAN
    # (the packaged table `textspan`) form 2 clusters; with 2 they form the 12 that the paper has.
    "paper": RoleSettings(
        space="embeddings",
        clustered="heads",
        entropy_over="attributes",
        min_sizes=(5,),
        min_samples=2,
    ),
}
"""Settings by name: our own, and those that follow the words of the paper's text (docs/roles.md)."""


def with_preset(preset: Preset, overrides: Mapping[str, Any]) -> RoleSettings:
    """The settings of a preset, except those that the user sets. Raises SettingsError."""
    return replace(PRESETS[preset], **overrides)


def check_table(name_or_path: str) -> None:
    """Raise the error of `named_table` for a file that is missing or no JSON. A command calls it first, so
    that the error comes before torch is loaded.
    """
    if name_or_path not in KINDS:
        read_table(Path(name_or_path))


def read_table(path: Path) -> Any:
    """The content of a table's file. Raises RoleTableError for one that is missing or no JSON."""
    try:
        return read_json(path)
    except ReadingError as error:
        raise RoleTableError(f"{path} is not a role table: {error.reason}.") from error
