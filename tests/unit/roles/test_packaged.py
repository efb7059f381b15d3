"""The role tables in the package: found by identity, and the published one as the paper prints it."""

import json
from pathlib import Path
from typing import Any

import pytest

from dear.backbone.clip import Clip, Identity
from dear.backbone.loading import tiny
from dear.errors import RoleTableError
from dear.roles.compare import compare
from dear.roles.table import FOLDER, HeadRole, RoleTable, named_table, role_table
from dear.roles.variants import by_concept, with_quantile
from tests.helpers.clips import RESNET, clip_of, network_of

PUBLISHED = FOLDER / "published.ViT-B-16.json"
SHARED = Path(__file__).parents[4] / "shared" / "paper" / "head_roles_vit_b16.json"
LAION = Identity("ViT-B-16", "laion2b_s34b_b88k", "1" * 64)


def test_a_resnet_has_no_heads_to_give_roles_to() -> None:
    resnet = clip_of(network_of(RESNET))
    for kind in (None, "published", "nowhere.json"):
        with pytest.raises(RoleTableError, match="small has no attention heads to give roles to: its image"):
            role_table(resnet, kind)


def test_published_table_is_found_by_the_name_of_its_weights(
    small_clip: Clip, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(small_clip, "identity", LAION)
    table = role_table(small_clip)
    assert table.source.startswith("published")
    table.check(LAION)
    for other in (
        Identity("ViT-B-16", "openai", "1" * 64),
        Identity("ViT-B-32", "laion2b_s34b_b88k", "1" * 64),
    ):
        monkeypatch.setattr(small_clip, "identity", other)
        with pytest.raises(RoleTableError, match="Give one with --roles"):
            role_table(small_clip)
        with pytest.raises(RoleTableError, match="ViT-B-16/laion2b_s34b_b88k"):
            table.check(other)


def test_published_table_equals_the_papers() -> None:
    if not SHARED.is_file():
        pytest.skip(f"the paper's table is not at {SHARED}")
    table = {(h.layer, h.head): h for h in RoleTable.load(PUBLISHED).heads}
    for row in json.loads(SHARED.read_text(encoding="utf-8")):
        head = table[row["layer"], row["head"]]
        assert head.role.split("-")[0] == row["role"].lower().split()[0]
        assert head.concept == (row["concept"].lower() if row["concept"] else None)


def test_the_papers_phrases_belong_to_its_table() -> None:
    phrases = SHARED.with_name("head_phrases_vit_b16.json")
    if not phrases.is_file():
        pytest.skip(f"the paper's phrases are not at {phrases}")
    printed = json.loads(phrases.read_text(encoding="utf-8"))
    heads = {f"{head.layer}.{head.head}": ", ".join(head.phrases) for head in RoleTable.load(PUBLISHED).heads}
    assert heads == {head: row["phrases"] for head, row in printed.items()}


def test_the_published_roles_follow_from_their_concepts() -> None:
    """Supplement B: the five attributes are core, style is generalization, no concept is mixed."""
    published = named_table("published")
    assert by_concept(published).heads == published.heads


def test_the_second_table_has_roles_by_any_quantile_and_by_concept() -> None:
    """Against the published roles as docs/roles.md has it: 28 of 43 concepts, 18 and 35 of 48 roles."""
    table, published = named_table("textspan"), named_table("published")
    assert (table.weights, table.attributes) == (published.weights, published.attributes)
    assert {len(head.phrases) for head in table.heads} == {10}
    assert with_quantile(table, 0.2).heads == table.heads
    compared = compare(table, published)
    assert (compared.concepts.agree, compared.concepts.heads, compared.roles.agree) == (28, 43, 18)
    assert compare(by_concept(table), published).roles.agree == 35
    # 48 heads: the lowest tenth ends between the fifth and the sixth; the tables nest.
    core = [
        {(h.layer, h.head) for h in with_quantile(table, q).heads if h.role == "core"}
        for q in (0.1, 0.2, 0.4)
    ]
    assert core[0] < core[1] < core[2]


def test_kinds_are_named_in_place_of_a_file(small_clip: Clip, tmp_path: Path) -> None:
    assert named_table("published").source.startswith("published")
    assert named_table("ground-truth").weights.model == "tiny"
    # The published table is returned whatever the weights, and refused where it is used.
    table = role_table(small_clip, Path("published"))
    with pytest.raises(RoleTableError, match="Find the roles of these weights with"):
        table.check(small_clip.identity)
    with pytest.raises(RoleTableError, match="no ground-truth role table is known for small/random"):
        role_table(small_clip, "ground-truth")
    with pytest.raises(RoleTableError, match=r"nowhere\.json is not a role table"):
        role_table(small_clip, "nowhere.json")
    mine = RoleTable("discovered (by hand)", small_clip.identity, ("color",), (HeadRole(5, 0, "mixed"),))
    mine.save(tmp_path / "mine.json")
    assert role_table(small_clip, tmp_path / "mine.json") == mine


def test_discovered_comes_before_ground_truth(small_clip: Clip, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("dear.roles.table.FOLDER", tmp_path)
    for kind, source in (("ground-truth", "discovered"), ("discovered", "ground-truth")):
        table = RoleTable(source, small_clip.identity, ("color",), (HeadRole(5, 0, "mixed"),))
        table.save(tmp_path / f"{kind}.small.json")
    assert role_table(small_clip).source == "ground-truth"  # its words say nothing of its kind
    assert role_table(small_clip, "ground-truth").source == "discovered"


def test_the_tiny_clips_tables_fit_its_weights() -> None:
    if not (tiny.FOLDER / tiny.WEIGHTS).is_file():
        pytest.skip(f"the packaged weights are not there yet: {tiny.FOLDER / tiny.WEIGHTS}")
    clip = tiny.load()
    for kind in ("discovered", "ground-truth"):
        table = role_table(clip, kind)
        assert [len(table.layer(layer, clip.image.heads)) for layer in range(9, 13)] == [clip.image.heads] * 4
        assert len(table.attributes) == 5
