"""The phrases of a table's heads on a plane, for its page."""

from dataclasses import dataclass

from dear.errors import DearError
from dear.roles.clusters import optional
from dear.roles.phrases import embed_phrases
from dear.roles.table import RoleTable

MOST = 600
"""Phrases on the map; of more, every second, third, ..."""
FEWEST = 4
SEED = 0


@dataclass(frozen=True)
class MappedPhrase:
    """A phrase at its place, with the dominant concept of the head in which it stands first."""

    x: float
    y: float
    phrase: str
    concept: str


def map_phrases(table: RoleTable) -> list[MappedPhrase]:
    """The distinct phrases of heads that have a concept, by t-SNE of their sentence embeddings. Empty for
    fewer than four, and where an extra is not installed: a page can be without.
    """
    concepts, ranks = dict[str, str](), dict[str, int]()
    for head in table.heads:
        for rank, phrase in enumerate(head.phrases if head.concept else ()):
            if rank < ranks.get(phrase, rank + 1):
                concepts[phrase], ranks[phrase] = str(head.concept), rank
    phrases = [*concepts][:: -(-len(concepts) // MOST) or 1]
    if len(phrases) < FEWEST:
        return []
    try:
        make = optional("sklearn.manifold").TSNE
        rows = embed_phrases(phrases).double().numpy()
    except DearError:
        return []
    perplexity = min(30.0, (len(rows) - 1) / 3)
    # The exact method: the fast one sums in an order that depends on the threads.
    plane = make(perplexity=perplexity, init="pca", method="exact", random_state=SEED).fit_transform(rows)
    return [
        MappedPhrase(float(x), float(y), phrase, concepts[phrase])
        for (x, y), phrase in zip(plane, phrases, strict=True)
    ]
