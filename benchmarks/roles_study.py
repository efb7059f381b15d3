"""The figures of docs/roles.md: a TEXTSPAN result against the published roles of ViT-B/16, and what
conventions, image sets and samples change in the tiny CLIP's roles.

    python benchmarks/roles_study.py TEXTSPAN.txt       rules, clusters and shares; about 3 minutes
    python benchmarks/roles_study.py --tiny 10000       conventions, two image sets, 20 samples; 10 minutes

One JSON line a figure.
"""

import argparse
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from dear.backbone.clip import Clip, Identity
from dear.backbone.load import load_clip
from dear.data.world.render import WorldScenes
from dear.errors import SettingsError
from dear.roles.build import build_table
from dear.roles.compare import compare
from dear.roles.discover import discover
from dear.roles.packaged import named_table
from dear.roles.phrases import load_pool
from dear.roles.settings import RoleSettings
from dear.roles.table import HeadRole, RoleTable
from dear.roles.textspan_format import in_layers, read_textspan
from dear.roles.trust import CLEAR, tied, top_share, unclear, without_heads

LAYERS = (9, 10, 11, 12)
PAPER = ("color", "shape", "texture", "object", "location")
VARIANTS: tuple[dict[str, Any], ...] = (
    {},
    {"attributes": PAPER},
    {"rule": "concept"},
    {"rule": "concept", "attributes": PAPER},
    {"over": "selected", "attributes": PAPER},
    {"cluster": "none"},
    {"rule": "concept", "attributes": PAPER, "cluster": "none"},
    {"reduction": "none"},
)
BINS = (0.0, CLEAR, 0.65, 1.01)
OTHER_SEED = 3000017


def against_published(spans: Path) -> None:
    heads, published = in_layers(read_textspan(spans), LAYERS), named_table("published")
    known = {(one.layer, one.head): one.concept for one in published.heads}
    weights = Identity("ViT-B-16", "laion2b_s34b_b88k", "")
    for settings in VARIANTS:
        try:
            table = build_table(heads, weights, source="study", settings=RoleSettings(**settings))
        except SettingsError as error:
            say(settings=settings, refused=str(error))
            continue
        found = compare(table, published)
        say(
            settings=settings,
            attributes=table.attributes,
            concepts=[found.concepts.agree, found.concepts.heads],
            roles=[found.roles.agree, found.roles.heads],
            kappa=round(found.roles.kappa or 0.0, 2),
            without_heads=without_heads(table),
            ties=sum(map(tied, table.heads)),
            unclear=sum(map(unclear, table.heads)),
        )
        if settings == {"attributes": PAPER}:
            by_share(table, known)


def by_share(table: RoleTable, known: dict[tuple[int, int], str | None]) -> None:
    """Agreement of the dominant concept by its share, and by layer."""
    heads = [one for one in table.heads if known[one.layer, one.head]]

    def agree(some: list[HeadRole]) -> list[int]:
        return [sum(one.concept == known[one.layer, one.head] for one in some), len(some)]

    for low, high in pairwise(BINS):
        say(share_from=low, agree=agree([one for one in heads if low <= (top_share(one) or 0.0) < high]))
    for layer in LAYERS:
        say(layer=layer, agree=agree([one for one in heads if one.layer == layer]))


def of_the_tiny_clip(images: int) -> None:
    clip = load_clip("tiny")
    exact = discovered(clip, images, RoleSettings(convention="exact"), bootstrap=20)
    public = discovered(clip, images, RoleSettings())
    mine, theirs = ({(one.layer, one.head): one for one in table.heads} for table in (exact, public))
    pairs = [(mine[place], theirs[place]) for place in mine]
    say(
        conventions="exact and public",
        heads=len(pairs),
        same_first_phrase=sum(a.phrases[0] == b.phrases[0] for a, b in pairs),
        same_phrases=sum(a.phrases == b.phrases for a, b in pairs),
        same_concept=sum(a.concept == b.concept for a, b in pairs),
        same_role=sum((a.role, a.attribute) == (b.role, b.attribute) for a, b in pairs),
    )
    fixed = RoleSettings(convention="exact", attributes=exact.attributes)
    found = compare(exact, discovered(clip, images, fixed, OTHER_SEED))
    say(
        two_image_sets=images, concepts=found.concepts.agree, roles=found.roles.agree, heads=found.roles.heads
    )
    kept = exact.evidence["stability"]
    rows = kept["heads"]
    say(
        samples=kept["samples"],
        role_kept=round(sum(row["role"] for row in rows) / len(rows) / kept["samples"], 3),
        concept_kept=round(sum(row["concept"] for row in rows) / len(rows) / kept["samples"], 3),
        heads_that_always_kept_their_role=sum(row["role"] == kept["samples"] for row in rows),
    )


def discovered(
    clip: Clip, images: int, settings: RoleSettings, seed: int | None = None, bootstrap: int = 0
) -> RoleTable:
    scenes = WorldScenes(images, clip.image_size, *([] if seed is None else [seed]))
    return discover(clip, scenes, load_pool("world"), settings=settings, bootstrap=bootstrap)


def say(**figures: Any) -> None:
    print(json.dumps(figures), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("spans", type=Path, nargs="?")
    parser.add_argument("--tiny", type=int, metavar="IMAGES")
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.spans:
        against_published(given.spans)
    if given.tiny:
        of_the_tiny_clip(given.tiny)


if __name__ == "__main__":
    main()
