"""Doubts about a role table, from heads made by hand."""

from dear.backbone.clip import Identity
from dear.roles.table import HeadRole, RoleTable
from dear.roles.trust import notes, share_mark, tied, unclear

CLEAR_HEAD = HeadRole(9, 0, "core", "color", "color", 0.5, {"color": 0.8, "shape": 0.2})
TIED = HeadRole(9, 1, "mixed", None, "shape", 0.7, {"shape": 0.5, "color": 0.5})
UNCLEAR = HeadRole(9, 2, "mixed", None, "text", 1.2, {"text": 0.4, "color": 0.3, "shape": 0.3})
BOTH = HeadRole(9, 3, "mixed", None, "text", 1.2, {"text": 0.4, "color": 0.4, "shape": 0.2})
BARE = HeadRole(9, 4, "generalization")


def table(*heads: HeadRole) -> RoleTable:
    return RoleTable("by hand", Identity("small", "random", ""), ("color", "shape"), heads)


def test_marks() -> None:
    assert [share_mark(one) for one in (CLEAR_HEAD, TIED, UNCLEAR, BOTH, BARE)] == [
        "80%", "50% =", "40% ?", "40% = ?", "",
    ]  # fmt: skip
    assert [tied(one) for one in (CLEAR_HEAD, TIED, BARE)] == [False, True, False]
    assert [unclear(one) for one in (TIED, UNCLEAR, BARE)] == [False, True, False]


def test_notes() -> None:
    whole = table(CLEAR_HEAD, TIED, UNCLEAR, BOTH, BARE)
    missing, ties, doubtful = notes(whole)
    assert missing.startswith("No core head: shape.")
    assert ties.startswith("=: in 2 heads")
    assert doubtful.startswith("?: in 2 heads the dominant concept has a share below 45%")
    shape = HeadRole(10, 0, "core", "shape", "shape", 0.0, {"shape": 1.0})
    assert notes(table(CLEAR_HEAD, shape)) == []
