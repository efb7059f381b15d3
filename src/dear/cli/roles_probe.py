"""`dear roles probe`: compare discovered concepts of a CLIP of the Attribute World with its known factors."""

from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from dear.cli.output import table as rich_table


@dataclass(frozen=True)
class ProbedHead:
    """One head: the table's concept, the factor that explains most of its variance, and the one read out
    best.

    Attributes:
        explained: Share (fraction) of the head's variance that each factor explains (epsilon squared).
        readings: Accuracy of a linear probe above chance: 0 is chance, 1 is perfect.
    """

    layer: int
    head: int
    role: str
    concept: str | None
    most_explained: str
    best_read: str
    explained: dict[str, float]
    readings: dict[str, float]


@dataclass(frozen=True)
class Probed:
    """All heads, and how often the concept is right among the heads whose concept is a factor."""

    source: str
    images: int
    heads: list[ProbedHead]
    factor_heads: int
    agree_explained: int
    agree_read: int


def command(
    *,
    model: str = "tiny",
    pretrained: str | None = None,
    roles: Path | None = None,
    images: int = 6000,
) -> Probed:
    """Evaluate a role table of a CLIP of the Attribute World against what its heads write about the known
    factors.

    Args:
        model: The CLIP of the Attribute World.
        pretrained: A folder written by `dear pretrain`; the weights in the package if not given.
        roles: Role table: a file, or discovered or ground-truth.
        images: Scenes to draw; a probe is fitted on one half and tested on the other.
    """
    from dear.backbone.choice import check_model

    check_model(model)
    from dear.backbone.load import load_clip  # loads torch: what can be refused without it is
    from dear.cli.progress import StepProgress
    from dear.data.world.factors import FACTOR_NAMES
    from dear.errors import SettingsError
    from dear.roles.packaged import role_table
    from dear.roles.world import WorldScenes, best, probe_heads

    if images < 100:
        raise SettingsError(f"images is {images}: a probe needs at least 100.")
    clip = load_clip(model, pretrained)
    table = role_table(clip, roles)
    table.check(clip.identity)
    scenes = WorldScenes(images, clip.image_size)
    known = {(h.layer, h.head): h for h in table.heads}
    with StepProgress() as progress:
        found = probe_heads(
            clip,
            scenes,
            sorted({layer for layer, _ in known}),
            progress=progress,
        )
    heads = [
        ProbedHead(
            layer, head, one.role, one.concept, best(found[place].explained), best(found[place].readings),
            found[place].explained, found[place].readings,
        )
        for place, one in known.items()
        for layer, head in [place]
    ]  # fmt: skip
    judged = [one for one in heads if one.concept in FACTOR_NAMES]
    return Probed(
        source=table.source,
        images=images,
        heads=heads,
        factor_heads=len(judged),
        agree_explained=sum(one.concept == one.most_explained for one in judged),
        agree_read=sum(one.concept == one.best_read for one in judged),
    )


def render(result: Probed, console: Console) -> None:
    """Show each head and how often the concept agrees."""
    rows: list[list[object]] = [
        [
            one.layer, one.head, one.role, one.concept,
            f"{one.most_explained} {100 * one.explained[one.most_explained]:.0f}%",
            *(f"{100 * value:.0f}" for value in one.readings.values()),
        ]
        for one in result.heads
    ]  # fmt: skip
    names = list(result.heads[0].readings)
    console.print(
        rich_table(
            f"{result.source}; linear probes in percent of the way from chance to perfect",
            ("layer", "head", "role", "concept", "most explained", *names),
            rows,
        )
    )
    console.print(
        f"{len(result.heads)} heads; the concept of {result.factor_heads} is one of the world's factors. "
        f"Among these it is the factor that explains most variance for {result.agree_explained}, and the one "
        f"that a linear probe reads out best for {result.agree_read}."
    )
