"""Role tables: written and read whole, refused when they do not fit, reshuffled without loss."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest

from dear.backbone.clip import Identity
from dear.errors import RoleTableError
from dear.roles.table import ROLES, HeadRole, Role, RoleTable
from dear.roles.variants import draw_roles, shuffle_roles, with_role

WEIGHTS = Identity("small", "random", "ab" * 32)
OTHER = Identity("small", "random", "cd" * 32)
HEADS = (
    HeadRole(4, 0, "core", "color", "color", 0.5, {"color": 0.8, "object": 0.2}),
    HeadRole(4, 1, "mixed", None, "object"),
    HeadRole(4, 2, "other-specialized", None, "number", 0.1),
    HeadRole(5, 0, "generalization"),
    HeadRole(5, 1, "core", "object", "object"),
    HeadRole(5, 2, "mixed"),
)


def table(heads: tuple[HeadRole, ...] = HEADS) -> RoleTable:
    return RoleTable("by hand", WEIGHTS, ("color", "object"), heads, {"images": 7})


def test_what_is_saved_is_what_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "roles.json"
    table().save(path)
    assert RoleTable.load(path) == table()
    saved = json.loads(path.read_text())
    assert saved["schema"] == 1
    assert saved["weights"]["sha256"] == "ab" * 32
    place = {"layer": 4, "head": 1, "role": "mixed", "attribute": None, "concept": "object"}
    assert saved["heads"][1] == place | {"entropy": None, "share": {}, "phrases": []}


@pytest.mark.parametrize("content", ["{", "[]", "{}", None])
def test_a_file_that_is_no_table_is_refused(content: str | None, tmp_path: Path) -> None:
    path = tmp_path / "roles.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(RoleTableError, match=r"roles\.json is not a role table"):
        RoleTable.load(path)


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"schema": 2}, "schema"),
        ({"heads": [{"layer": 4}]}, "heads"),
        ({"heads": []}, "without heads"),
        ({"heads": [{"layer": 1, "head": 0, "role": "special"}]}, "role"),
        ({"weights": {"model": "small"}}, "weights"),
        ({"attributes": ["color", "object", "color"]}, "attribute is listed twice"),
        ({"attributes": ["color", "object", "cls"]}, "'cls'"),  # as a part of scores is called
    ],
)
def test_a_table_with_a_damaged_part_is_refused(change: dict[str, Any], key: str) -> None:
    with pytest.raises(RoleTableError, match=key):
        RoleTable.from_json(table().to_json() | change, "roles.json")


def test_two_roles_for_one_head() -> None:
    with pytest.raises(RoleTableError, match=r"two roles.*\(4, 1\)"):
        table((*HEADS, HeadRole(4, 1, "generalization")))


@pytest.mark.parametrize(
    ("head", "message"),
    [
        (HeadRole(4, 0, "core"), r"layer 4 head 0: a core head needs one of.*color.*object.*it has None"),
        (HeadRole(4, 0, "core", "texture"), "it has 'texture'"),
        (HeadRole(4, 0, "mixed", "color"), "others none; it has 'color'"),
    ],
)
def test_a_role_that_makes_no_sense(head: HeadRole, message: str) -> None:
    with pytest.raises(RoleTableError, match=message):
        table((head, *HEADS[1:]))


def test_a_layer_lists_its_heads_in_order() -> None:
    shuffled = table((HEADS[2], HEADS[4], HEADS[0], HEADS[5], HEADS[1], HEADS[3]))
    assert shuffled.layer(4, 3) == list(HEADS[:3])
    assert shuffled.layer(5, 3) == list(HEADS[3:])


def test_a_layer_with_missing_or_unknown_heads_is_refused() -> None:
    with pytest.raises(RoleTableError, match=r"layer 5, which has 3 heads: missing heads \[1\]"):
        table((*HEADS[:4], HEADS[5])).layer(5, 3)
    with pytest.raises(RoleTableError, match=r"unknown heads \[2\]"):
        table().layer(4, 2)
    with pytest.raises(RoleTableError, match=r"layer 3, .* missing heads \[0, 1, 2\]"):
        table().layer(3, 3)


def test_weights_are_checked_unless_others_are_allowed() -> None:
    table().check(WEIGHTS)
    table().check(replace(WEIGHTS, model="renamed", pretrained="elsewhere"))  # the values count, not the name
    with pytest.raises(RoleTableError, match="with `dear roles discover`, or give --other to use it"):
        table().check(OTHER, option="--other")
    with pytest.raises(RoleTableError, match=r"with `dear roles discover`\.$"):
        table().check(OTHER)
    table().check(OTHER, allow_other=True)


def test_shuffling_deals_the_same_roles_to_the_same_heads() -> None:
    dealt = shuffle_roles(table(), 3)

    def roles(t: RoleTable) -> Counter[tuple[Any, ...]]:
        return Counter((h.role, h.attribute, h.concept, h.entropy) for h in t.heads)

    assert roles(dealt) == roles(table())
    assert [(h.layer, h.head) for h in dealt.heads] == [(h.layer, h.head) for h in HEADS]
    assert dealt.heads != HEADS
    assert dealt == shuffle_roles(table(), 3)
    assert sum(shuffle_roles(table(), seed).heads != dealt.heads for seed in range(11, 18)) > 3
    assert (dealt.weights, dealt.attributes) == (WEIGHTS, ("color", "object"))
    assert "shuffled" in dealt.source


@pytest.mark.parametrize("role", ["generalization", "mixed"])
def test_uniform_gives_every_head_one_role(role: Role) -> None:
    same = with_role(table(), role)
    assert [(h.layer, h.head, h.role, h.attribute) for h in same.heads] == [
        (h.layer, h.head, role, None) for h in HEADS
    ]
    assert same.attributes == ("color", "object")
    assert same.source == f"all {role}, from by hand"


def test_random_roles_are_valid_and_cover_all() -> None:
    many = table(tuple(HeadRole(4, head, "mixed", None, "object", 0.5) for head in range(97)))
    drawn = draw_roles(many, 3)
    assert drawn == draw_roles(many, 3) != draw_roles(many, 4)
    assert {h.role for h in drawn.heads} == {"core", "other-specialized", "mixed", "generalization"}
    assert {h.attribute for h in drawn.heads if h.role == "core"} == {"color", "object"}
    assert [(h.layer, h.head) for h in drawn.heads] == [(h.layer, h.head) for h in many.heads]
    assert drawn.source == "random (seed 3), over by hand"
    # 97 draws of 4: each role 24 times, with a deviation of 4.3.
    assert all(10 < count < 40 for count in Counter(h.role for h in drawn.heads).values())


def test_every_role_has_its_words() -> None:
    assert {*ROLES} == {*get_args(Role)}
