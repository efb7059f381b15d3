"""What an index needs of a model (`Encoder`), and an encoder without training: what the core heads of a role
table add to CLIP's image embedding.

The feature of attribute a in image x, with H_a the core heads of a and c the contributions in the exact
convention (`dear.backbone.head_contributions`), is

    f_a(x) = u(sum of c_h(x) over h in H_a, minus m_a),    u(v) = v / |v|,

where m_a is the mean of that sum over images. The feature "class" is CLIP's own, not centred. A text t is
compared with f_a within the subspace that the heads of H_a can write to: t_a = u(P_a t), with P_a the
orthogonal projection onto it (`written_subspace`). f_a lies in it, so cos(f_a, t_a) = <f_a, t> / |P_a t|:
images come in the order of <f_a, t>, on a scale that does not depend on how much of t lies outside.

Source: Gandelsman et al., ICLR 2024, property-based image retrieval: neighbours by the sum. Centring, and the
projection of texts, are ours.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Protocol, TypedDict

import torch
from jaxtyping import Float, UInt8
from torch import Tensor
from torch.nn.functional import normalize

from dear.backbone.clip import Clip
from dear.backbone.head_contributions import head_contributions, written_subspace
from dear.backbone.preprocess import Preprocess
from dear.data.dataset import fingerprint
from dear.data.images.decode import decode
from dear.data.images.photos import in_parallel
from dear.data.images.transforms import eval_view, to_unit
from dear.errors import DataError, RoleTableError, SettingsError
from dear.progress import Progress, silent
from dear.retrieval.build import scan
from dear.retrieval.index import list_shards
from dear.retrieval.storage import Store
from dear.roles.table import Head, RoleTable

CLASS = "class"
SAMPLE = 1024
"""Most images that means are taken over: their error is a thirty-second of an image's spread."""
CONVENTION: Literal["exact"] = "exact"
"""In the public convention contributions hold shares of constants too, which the heads do not write."""
SAME = 1e-5
"""Distance from the mean, as a share of the length, up to which images do not differ in an attribute."""


class HeadFacts(TypedDict):
    """How the features of heads in an index were made.

    Attributes:
        model, pretrained: The CLIP, as arguments of `load_clip`.
        sha256: Of its tensors.
        table: The source of the role table.
        heads: The heads (layer, head) of each attribute that has any.
        left_out: The attributes that have none.
        convention: That of the contributions.
        mean: What each attribute's sum is centered by, as (attribute, embed), and of how many images it is
            the mean.
    """

    model: str
    pretrained: str | None
    sha256: str
    table: str
    heads: dict[str, list[Head]]
    left_out: list[str]
    convention: Literal["exact"]
    mean: list[list[float]]
    images: int


class Encoder(Protocol):
    """A CLIP, adapted or not, as an index sees it.

    Attributes:
        identity: Identity of the weights, and of the adapter or the heads: features of two identities are not
            comparable.
        features: Names of the image features.
        unowned: Those of them whose attribute owns no head: they are not to be searched by.
        embed: Their width.
        preprocess: What makes the test view of a picture.
    """

    @property
    def identity(self) -> str: ...

    @property
    def features(self) -> tuple[str, ...]: ...

    @property
    def unowned(self) -> tuple[str, ...]: ...

    @property
    def embed(self) -> int: ...

    @property
    def preprocess(self) -> Preprocess: ...

    @property
    def facts(self) -> Mapping[str, Any]:
        """What an index records of the encoder beyond these."""

    def images(self, views: UInt8[Tensor, "batch 3 size size"]) -> Float[Tensor, "batch feature embed"]:
        """Unit features of test views in 8 bits."""

    def texts(self, texts: Sequence[str]) -> Float[Tensor, "text feature embed"]:
        """Unit features of texts, for each image feature in its space."""


class HeadSums:
    """The class embedding and the sums of heads' contributions, in one forward pass."""

    def __init__(self, clip: Clip, heads: Mapping[str, Sequence[Head]]) -> None:
        """``heads`` of each attribute, at least one. Raises RoleTableError for heads that do not exist."""
        tower = clip.image
        for name, owned in heads.items():
            for layer, head in owned:
                if not (1 <= layer <= tower.depth and 0 <= head < tower.heads):
                    raise RoleTableError(
                        f"{name} owns layer {layer} head {head}, but {clip.identity.model} has {tower.depth} "
                        f"layers of {tower.heads} heads."
                    )
        self.clip = clip
        self.heads = {name: tuple(owned) for name, owned in heads.items()}
        self.layers = sorted({layer for owned in heads.values() for layer, _ in owned})

    @torch.no_grad()
    def __call__(
        self, views: Float[Tensor, "batch 3 size size"]
    ) -> tuple[Float[Tensor, "batch embed"], Float[Tensor, "batch attribute embed"]]:
        """The embeddings of views in [0, 1], and each attribute's sum over its heads."""
        pixels = self.clip.normalize_pixels(views.to(self.clip.image.projection))
        terms = head_contributions(self.clip.image, pixels, self.layers, CONVENTION)
        sums = [
            torch.stack([terms.heads[:, self.layers.index(layer), head] for layer, head in owned]).sum(dim=0)
            for owned in self.heads.values()
        ]
        return terms.total(), torch.stack(sums, dim=1)


class HeadEncoder:
    """A CLIP and the core heads of a role table as the encoder of an image index: no adapter, no training.

    Attributes:
        head_facts: What an index records of it.
    """

    def __init__(self, clip: Clip, facts: HeadFacts) -> None:
        """Raises DataError for a CLIP with other weights or a mean of another shape, RoleTableError for heads
        that do not exist.
        """
        if facts["sha256"] != clip.identity.sha256:
            raise DataError(
                f"the index was built with {facts['model']} [{facts['sha256'][:12]}], not with "
                f"{clip.identity}: features of two models are not comparable. Give its weights with "
                "--pretrained, or build an index with these elsewhere."
            )
        self.clip, self.head_facts = clip, facts
        self.sums = HeadSums(clip, facts["heads"])
        self.features: tuple[str, ...] = (CLASS, *facts["heads"])
        self.unowned: tuple[str, ...] = ()  # they have no feature
        self.embed: int = clip.image.embed_dim
        self.preprocess = clip.preprocess
        fits = [len(row) for row in facts["mean"]] == [self.embed] * len(facts["heads"])
        if not (fits and facts["heads"] and all(facts["heads"].values())):
            raise DataError(
                "the index is damaged (its means do not fit its heads): remove it and build it again."
            )
        self.mean = torch.tensor(facts["mean"], dtype=torch.float64).to(clip.image.projection)

    @cached_property
    def identity(self) -> str:
        """Hash of what the features depend on."""
        return identity_of(self.head_facts)

    @property
    def facts(self) -> Mapping[str, Any]:
        return {"heads": self.head_facts}

    @torch.no_grad()
    def of_views(self, views: Float[Tensor, "batch 3 size size"]) -> Float[Tensor, "batch feature embed"]:
        """Unit features of views in [0, 1], in the order of ``features``."""
        embeddings, sums = self.sums(views)
        return normalize(torch.cat([embeddings[:, None], sums - self.mean], dim=1), dim=-1)

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
        return [written_subspace(tower, heads).to(tower.projection) for heads in self.sums.heads.values()]


def identity_of(facts: HeadFacts) -> str:
    """Hash of weights, heads, convention and means."""
    return fingerprint(
        "heads",
        facts["sha256"],
        facts["convention"],
        *(repr((name, [tuple(head) for head in heads])) for name, heads in facts["heads"].items()),
        repr(facts["mean"]),
    )


def head_facts(
    clip: Clip,
    table: RoleTable,
    views: Iterable[Float[Tensor, "batch 3 size size"]],
    *,
    pretrained: str | None = None,
) -> HeadFacts:
    """What a `HeadEncoder` is made from, with the means over some images.

    Args:
        views: The images, in [0, 1], in batches.
        pretrained: The weights, as the argument of `load_clip`, for queries to find them again.

    Raises:
        RoleTableError: for a table of other weights, or one in which no attribute owns a head.
        DataError: without an image, or if the images do not differ in an attribute.
    """
    heads = _require_heads(clip, table)
    sums = HeadSums(clip, heads)
    total = squares = torch.zeros(())
    count = 0
    for batch in views:
        values = sums(batch)[1].cpu().double()
        total, squares = total + values.sum(dim=0), squares + values.square().sum(dim=(0, 2))
        count += len(values)
    if not count:
        raise DataError("there are no readable images to center the features by.")
    mean = total / count
    spread = squares / count - mean.square().sum(dim=1)
    if not (spread > SAME**2 * squares / count).all():
        raise DataError(
            "the images do not differ in what the heads of an attribute write, so there is nothing to center "
            "the features by: give a folder with at least two different images."
        )
    return HeadFacts(
        model=clip.identity.model,
        pretrained=pretrained,
        sha256=clip.identity.sha256,
        table=table.source,
        heads={name: list(owned) for name, owned in heads.items()},
        left_out=[name for name in table.attributes if name not in heads],
        convention=CONVENTION,
        mean=mean.float().tolist(),
        images=count,
    )


def core_heads(table: RoleTable) -> dict[str, tuple[Head, ...]]:
    """The core heads of each attribute of a table, in its order; none for an attribute without any."""
    return {
        name: tuple(sorted((role.layer, role.head) for role in table.heads if role.attribute == name))
        for name in table.attributes
    }


def encoder_for(
    clip: Clip,
    table: RoleTable,
    folder: Path,
    out: Path,
    *,
    pretrained: str | None = None,
    threads: int = 1,
    batch: int = 64,
    progress: Progress = silent,
) -> HeadEncoder:
    """The encoder to index a folder's images with: that of the index, or of a shard of it, if there is one
    already, else one whose means are over up to `SAMPLE` of the images, evenly spread over their paths.

    Means are fixed by the first build: with others, the rows that an index has could not be compared with
    those of new images and of queries.

    Raises:
        DataError: for a folder without readable images, or whose images do not differ; for an index of a
            bundle's features, of other weights or of other heads.
        RoleTableError: for a table of other weights, or one in which no attribute owns a head.
        SettingsError: for a batch or a number of threads below 1.
    """
    if batch < 1 or threads < 1:
        raise SettingsError(f"batch is {batch} and threads {threads}: both must be at least 1.")
    heads = _require_heads(clip, table)
    built = next((index for index in (out, *list_shards(out)) if Store.exists(index)), None)
    if built is None:
        views = _sample(folder, out, clip.preprocess, threads, batch, progress)
        return HeadEncoder(clip, head_facts(clip, table, views, pretrained=pretrained))
    facts = Store(built).metadata.get("heads")
    if facts is None:
        raise DataError(
            f"the index {out} holds features of a bundle, not of heads: choose another with --out."
        )
    if {name: [*map(list, owned)] for name, owned in heads.items()} != facts["heads"]:  # JSON has lists
        raise DataError(
            f"the index {out} was built with other heads, those of the role table {facts['table']!r}: give "
            "that table with --roles, or choose another folder with --out."
        )
    return HeadEncoder(clip, facts)


def _require_heads(clip: Clip, table: RoleTable) -> dict[str, tuple[Head, ...]]:
    """The core heads of each attribute that has any. Raises RoleTableError as `head_facts` does."""
    table.check(clip.identity)
    heads = {name: owned for name, owned in core_heads(table).items() if owned}
    if not heads:
        raise RoleTableError(f"no attribute of the role table {table.source!r} owns a head: choose another.")
    if CLASS in heads:
        raise RoleTableError(f"the role table {table.source!r} has an attribute named {CLASS!r}: rename it.")
    return heads


def _sample(
    folder: Path, out: Path, preprocess: Preprocess, threads: int, batch: int, progress: Progress
) -> Iterator[Float[Tensor, "batch 3 size size"]]:
    """Views of some images of a folder, in batches; unreadable ones are left out."""
    paths = sorted(scan(folder, leave_out=out))
    sample = [paths[at * len(paths) // SAMPLE] for at in range(SAMPLE)] if len(paths) > SAMPLE else paths
    if not sample:
        raise DataError(f"{folder} has no image files (by their names). Choose a folder with images.")

    def read(path: str) -> UInt8[Tensor, "3 size size"] | None:
        try:
            return eval_view(decode(folder / path), preprocess)
        except DataError:  # the build reports it
            return None

    for start in range(0, len(sample), batch):
        read_views = in_parallel(read, sample[start : start + batch], threads)
        views = [view for view in read_views if view is not None]
        if views:
            yield to_unit(torch.stack(views))
        progress("means of heads", min(start + batch, len(sample)), len(sample))
