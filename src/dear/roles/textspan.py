"""TEXTSPAN: phrases that span a head's contributions (Gandelsman et al., ICLR 2024), for many heads at once.

The published algorithm works on the n x d contributions themselves. Every quantity that it compares follows
from their first and second moments and is in the row space onto which the text is projected; so here a head
is represented by a mean and a d x d matrix, then an r x r one, whatever the number of images. The phrases
and their order are the same.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dear.errors import DataError, SettingsError

NULL = 1e-6
"""A singular value below this share of the largest is rounding error: its direction would be noise."""
HEADS_AT_ONCE = 8


@dataclass(frozen=True)
class Span:
    """The greedy span of each head, first phrase first.

    Attributes:
        phrases: Rows of the phrase embeddings.
        first: Unit direction of the first phrase, projected onto the head's row space; zero if the head
            contributes nothing.
    """

    phrases: Int[Tensor, "*head pick"]
    first: Float[Tensor, "*head embed"]


class Moments:
    """Running sums over images of contributions and of their outer products, in float64.

    Sufficient for TEXTSPAN and for means, so that contributions need not be stored. Does not work on devices
    without float64 (MPS).
    """

    def __init__(self, *heads: int, embed: int, device: torch.device | str = "cpu") -> None:
        self.count = 0
        self.sum = torch.zeros(*heads, embed, dtype=torch.float64, device=device)
        self.outer = torch.zeros(*heads, embed, embed, dtype=torch.float64, device=device)

    def add(self, batch: Float[Tensor, "item *heads embed"]) -> None:
        """Add the contributions of some images."""
        self.count += len(batch)
        rows = batch.to(self.sum).movedim(0, -2)
        self.sum += rows.sum(dim=-2)
        self.outer += rows.mT @ rows

    @property
    def mean(self) -> Float[Tensor, "*heads embed"]:
        return self.sum / self.count

    @property
    def second(self) -> Float[Tensor, "*heads embed embed"]:
        """Second moments about zero."""
        return self.outer / self.count


@torch.no_grad()
def textspan(moments: Moments, text: Float[Tensor, "phrase embed"], *, rank: int, top: int) -> Span:
    """The ``top`` phrases that span each head, in greedy order. Heads may have any number of axes.

    For each head: project the text onto the row space of the top-``rank`` right singular vectors of the
    contributions C, center C, then repeat: take the phrase onto which C's projection has the largest standard
    deviation (the phrase is not normalized; ties: the first) and remove its direction from C and from the
    text. Singular values below 1e-6 of the largest do not count towards the rank [ours]: their directions are
    rounding errors. Raises DataError for fewer images than the rank, SettingsError for more phrases than the
    rank or the pool allows.

    Source: Gandelsman et al., ICLR 2024, algorithm 1, and the authors' code.
    """
    embed = moments.sum.shape[-1]
    rank = min(rank, embed)
    enough_images(moments.count, rank)
    if not 1 <= top <= min(rank, len(text)):
        raise SettingsError(
            f"{top} phrases per head cannot be picked from a span of rank {rank} and {len(text)} phrases: "
            f"give --settings.phrases-a-head from 1 to {min(rank, len(text))}."
        )
    means, seconds = moments.mean.reshape(-1, embed), moments.second.reshape(-1, embed, embed)
    if not bool(torch.isfinite(seconds).all()):
        raise DataError(
            "the contributions have values that are not finite: check the images and the weights."
        )
    pool = text.to(seconds)
    spans = [
        _span(means[i : i + HEADS_AT_ONCE], seconds[i : i + HEADS_AT_ONCE], pool, rank, top)
        for i in range(0, len(means), HEADS_AT_ONCE)
    ]
    phrases, first = (torch.cat(parts).cpu() for parts in zip(*spans, strict=True))
    shape = (*moments.sum.shape[:-1], top)
    return Span(phrases.reshape(shape), first.reshape(moments.sum.shape))


def enough_images(count: int, rank: int) -> None:
    """Raise DataError for fewer images than the rank: their contributions could not fill the row space."""
    if count < rank:
        raise DataError(
            f"{count} images are fewer than the rank {rank} of the span: use more images, or a lower --rank."
        )


def _span(
    mean: Float[Tensor, "head embed"],
    second: Float[Tensor, "head embed embed"],
    text: Float[Tensor, "phrase embed"],
    rank: int,
    top: int,
) -> tuple[Int[Tensor, "head pick"], Float[Tensor, "head embed"]]:
    """Phrases and the first one's direction, by coordinates of the top right singular vectors, which are the
    second moment's eigenvectors.
    """
    values, vectors = torch.linalg.eigh(second)
    not_null = values[:, -rank:] > NULL**2 * values[:, -1:]
    basis = vectors[:, :, -rank:] * not_null.unsqueeze(1)
    covariance = second - mean.unsqueeze(2) * mean.unsqueeze(1)
    picks, first = _greedy(text @ basis, basis.mT @ covariance @ basis, top)
    return picks, (basis @ first.unsqueeze(2)).squeeze(2)


def _greedy(
    text: Float[Tensor, "head phrase rank"], covariance: Float[Tensor, "head rank rank"], top: int
) -> tuple[Int[Tensor, "head pick"], Float[Tensor, "head rank"]]:
    """Phrases and the first one's unit direction."""
    picks, units = [], []
    picked = torch.zeros(text.shape[:2], dtype=torch.bool, device=text.device)
    for _ in range(top):
        variance = ((text @ covariance) * text).sum(dim=2)
        # A head of fewer dimensions than picks ends in rounding errors: at least no phrase is picked twice.
        pick = variance.masked_fill(picked, -1).argmax(dim=1)
        picked = picked.scatter(1, pick.unsqueeze(1), True)
        unit = torch.nn.functional.normalize(
            text.gather(1, pick.view(-1, 1, 1).expand(-1, 1, text.shape[2])), dim=2, eps=1e-300
        )
        text = text - (text @ unit.mT) * unit
        covariance = covariance - (covariance @ unit.mT) * unit
        covariance = covariance - unit.mT * (unit @ covariance)
        picks.append(pick)
        units.append(unit.squeeze(1))
    return torch.stack(picks, dim=1), units[0]
