"""The role tables in the package: found by identity, and the published one as the paper prints it."""

import json
from collections import Counter
from pathlib import Path

import pytest

from dear.backbone.clip import Identity
from dear.errors import RoleTableError
from dear.roles.packaged import FOLDER, packaged_table
from dear.roles.table import RoleTable

PUBLISHED = FOLDER / "vit_b16_published.json"
SHARED = Path(__file__).parents[4] / "shared" / "paper" / "head_roles_vit_b16.json"
LAION = Identity("ViT-B-16", "laion2b_s34b_b88k", "1" * 64)


def test_published_table_is_found_by_the_name_of_its_weights() -> None:
    table = packaged_table(LAION)
    assert table.source.startswith("published")
    table.check(LAION)
    for other in (
        Identity("ViT-B-16", "openai", "1" * 64),
        Identity("ViT-B-32", "laion2b_s34b_b88k", "1" * 64),
    ):
        with pytest.raises(RoleTableError, match="Give one with --roles"):
            packaged_table(other)
        with pytest.raises(RoleTableError, match="ViT-B-16/laion2b_s34b_b88k"):
            table.check(other)


def test_a_table_with_a_hash_goes_by_the_hash_alone() -> None:
    table = RoleTable("by hand", Identity("a", "b", "2" * 64), (), ())
    assert table.fits(Identity("renamed", "copy", "2" * 64))
    assert not table.fits(Identity("a", "b", "3" * 64))


def test_published_counts() -> None:
    # The supplement: 48 heads, 28 of them core.
    table = RoleTable.load(PUBLISHED)
    roles = Counter(head.role for head in table.heads)
    assert roles == {"core": 28, "generalization": 7, "other-specialized": 8, "mixed": 5}
    assert [len(table.layer(layer, 12)) for layer in (9, 10, 11, 12)] == [12] * 4


def test_published_table_equals_the_papers() -> None:
    if not SHARED.is_file():
        pytest.skip(f"the paper's table is not at {SHARED}")
    table = {(h.layer, h.head): h for h in RoleTable.load(PUBLISHED).heads}
    for row in json.loads(SHARED.read_text(encoding="utf-8")):
        head = table[row["layer"], row["head"]]
        assert head.role.split("-")[0] == row["role"].lower().split()[0]
        assert head.concept == (row["concept"].lower() if row["concept"] else None)
