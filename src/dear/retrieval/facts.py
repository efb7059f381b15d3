"""The facts of an index, with their types: how it was built, and what its vectors are."""

from typing import Annotated, Literal, NotRequired, TypedDict

from dear.reading.typed import Count, Positive, Range

LAST_GENERATION = 10**12  # the first one follows it


class HeadFacts(TypedDict):
    """How the features of heads in an index were made.

    Attributes:
        model, pretrained: The CLIP, as arguments of `load_clip`.
        sha256: Of its tensors.
        table: The source of the role table.
        heads: The heads (layer, head) of each attribute that has any.
        left_out: The attributes that have none.
        convention: That of the contributions.
        mean: What each attribute's sum is centred by, as (attribute, embed), and of how many images it is the
            mean.
    """

    model: str
    pretrained: str | None
    sha256: str
    table: str
    heads: dict[str, list[tuple[Positive, Count]]]
    left_out: list[str]
    convention: Literal["exact"]
    mean: list[list[float]]
    images: Positive


class Facts(TypedDict):
    """The facts in every catalogue, with their types.

    Attributes:
        rows: How many there are: the next chunk's follow them.
        generation: Number of the folder of vectors.
        searchable_rows: How many rows there were at the end of the last build: queries compare these. It is
            missing until a first build was completed.
        merging: It is the index of a merge that has not ended, which begins again.
    """

    identity: str
    features: list[str]
    embed: Positive
    folder: str
    model: str
    rows: Count
    generation: Annotated[int, Range(0, LAST_GENERATION)]
    searchable_rows: NotRequired[Count]
    merging: NotRequired[Literal[True]]
    shard: NotRequired[tuple[Positive, Positive]]
    heads: NotRequired[HeadFacts]
