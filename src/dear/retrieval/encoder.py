"""What an index needs of a model (`Encoder`), and an encoder without training: what the core heads of a role
table add to CLIP's image embedding.

The feature of attribute a in image x, with H_a the core heads of a and c the contributions in the exact
convention (`dear.backbone.head_contributions`), is

    f_a(x) = u(sum of c_h(x) over h in H_a, minus m_a),    u(v) = v / |v|,

where m_a is the mean of that sum over some images, which the index takes and subtracts. The feature "class"
is CLIP's own, not centered.
A text t is compared with f_a within the subspace that the heads of H_a can write to: t_a = u(P_a t), with P_a
the orthogonal projection onto it (`written_subspace`). f_a lies in it, so cos(f_a, t_a) = <f_a, t> / |P_a t|:
images come in the order of <f_a, t>, on a scale that does not depend on how much of t lies outside.

Source: Gandelsman et al., ICLR 2024, property-based image retrieval: neighbors by the sum. Centering, and the
projection of texts, are ours.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Final, Protocol, TypedDict

import torch
from jaxtyping import Float, UInt8
from torch import Tensor
from torch.nn.functional import normalize

from dear.backbone.clip import Clip
from dear.backbone.head_contributions import head_contributions, written_subspace
from dear.backbone.preprocess import Preprocess
from dear.data.images.transforms import to_unit
from dear.errors import RoleTableError
from dear.roles.table import Head, RoleTable
from dear.text import fingerprint

CLASS = "class"
CONVENTION: Final = "exact"
"""In the public convention contributions hold shares of constants too, which the heads do not write."""


class HeadFacts(TypedDict):
    """How the features of heads were made: the CLIP, as arguments of `load_clip`; the hash of its tensors;
    the source of the role table; the heads of each attribute that has any, and the attributes without one.
    """

    model: str
    pretrained: str | None
    sha256: str
    table: str
    heads: dict[str, list[Head]]
    left_out: list[str]


class Encoder(Protocol):
    """A CLIP, adapted or not, as an index sees it.

    Attributes:
        identity: Identity of the weights, and of the adapter or the heads: features of two identities are not
            comparable.
        features: Names of the image features.
        left_out: Attributes without a feature, for they own no head.
        embed: The width of the features.
        preprocess: What makes the test view of a picture.
        facts: What an index records of the encoder beyond these; "means" if it centers features.
    """

    identity: str
    features: tuple[str, ...]
    left_out: tuple[str, ...]
    embed: int
    preprocess: Preprocess
    facts: Mapping[str, Any]

    def images(self, views: UInt8[Tensor, "batch 3 size size"]) -> Float[Tensor, "batch feature embed"]:
        """Features of test views in 8 bits: of length 1, unless the index is to center them."""

    def texts(self, texts: Sequence[str]) -> Float[Tensor, "text feature embed"]:
        """Unit features of texts, for each image feature in its space."""


class HeadEncoder:
    """A CLIP and the core heads of a role table as the encoder of an image index: no adapter, no training."""

    def __init__(self, clip: Clip, facts: HeadFacts) -> None:
        """``facts`` are those of an index, or of a table (`encoder_for`). Raises RoleTableError for heads
        that do not exist.
        """
        tower = clip.image
        self.heads = {name: [(layer, head) for layer, head in at] for name, at in facts["heads"].items()}
        for name, owned in self.heads.items():
            for layer, head in owned:
                if not (1 <= layer <= tower.depth and 0 <= head < tower.heads):
                    raise RoleTableError(
                        f"{name} owns layer {layer} head {head}, but {clip.identity.model} has {tower.depth} "
                        f"layers of {tower.heads} heads."
                    )
        self.clip, self.embed, self.preprocess = clip, tower.embed_dim, clip.preprocess
        self.features: tuple[str, ...] = (CLASS, *self.heads)
        self.left_out = tuple(facts["left_out"])
        self.facts: Mapping[str, Any] = {"heads": facts, "means": None}
        self.identity = fingerprint("heads", clip.identity.sha256, CONVENTION, repr([*self.heads.items()]))

    @torch.no_grad()
    def of_views(self, views: Float[Tensor, "batch 3 size size"]) -> Float[Tensor, "batch feature embed"]:
        """The embeddings of views in [0, 1] and each attribute's sum over its heads, not centered."""
        tower = self.clip.image
        layers = sorted({layer for owned in self.heads.values() for layer, _ in owned})
        pixels = self.clip.normalize_pixels(views.to(tower.projection))
        terms = head_contributions(tower, pixels, layers, CONVENTION)
        sums = [
            torch.stack([terms.heads[:, layers.index(layer), head] for layer, head in owned]).sum(dim=0)
            for owned in self.heads.values()
        ]
        return torch.stack([terms.total(), *sums], dim=1)

    def images(self, views: UInt8[Tensor, "batch 3 size size"]) -> Float[Tensor, "batch feature embed"]:
        return self.of_views(to_unit(views)).cpu()

    @torch.no_grad()
    def texts(self, texts: Sequence[str]) -> Float[Tensor, "text feature embed"]:
        """Unit features of texts, taken as they are: whole for the class, in each attribute's subspace. Zero
        for a text without any part in a subspace.
        """
        embeddings = normalize(self.clip.encode_text(texts), dim=-1)
        projected = [normalize(embeddings @ rows.T @ rows, dim=-1) for rows in self._subspaces]
        return torch.stack([embeddings, *projected], dim=1).cpu()

    @cached_property
    def _subspaces(self) -> list[Float[Tensor, "_rank embed"]]:
        tower = self.clip.image
        return [written_subspace(tower, heads).to(tower.projection) for heads in self.heads.values()]


def encoder_for(clip: Clip, table: RoleTable, *, pretrained: str | None = None) -> HeadEncoder:
    """The encoder of a role table's core heads.

    Args:
        pretrained: The weights, as the argument of `load_clip`, for queries to find them again.

    Raises RoleTableError for a table of other weights, or one in which no attribute owns a head.
    """
    table.check(clip.identity)
    owned = {name: [head for head in table.heads if head.attribute == name] for name in table.attributes}
    heads = {name: sorted((head.layer, head.head) for head in own) for name, own in owned.items() if own}
    if not heads or CLASS in heads:
        fault = f"an attribute named {CLASS!r}: rename it" if heads else "no core head: choose another"
        raise RoleTableError(f"the role table {table.source!r} has {fault}.")
    facts = HeadFacts(
        model=clip.identity.model,
        pretrained=pretrained,
        sha256=clip.identity.sha256,
        table=table.source,
        heads=heads,
        left_out=[name for name in table.attributes if name not in heads],
    )
    return HeadEncoder(clip, facts)
