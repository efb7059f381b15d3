"""A table from phrases, with the stored embeddings of the package's own pool: no sentence model is needed."""

from dataclasses import replace
from typing import Any

import pytest

from dear.errors import DataError, SettingsError
from dear.roles.build import build_table
from dear.roles.phrases import Pool
from dear.roles.settings import RoleSettings
from dear.roles.table import RoleTable
from tests.unit.roles.samples import HEADS, WEIGHTS

FEW = RoleSettings(k=3, min_sizes=(25,))


@pytest.fixture(scope="module")
def table() -> RoleTable:
    return build_table(HEADS, WEIGHTS, source="by hand", settings=FEW, facts={"images": 7})


def test_concepts_and_roles(table: RoleTable) -> None:
    found = {(h.layer, h.head): h for h in table.heads}
    assert [found[5, head].concept for head in range(3)] == ["color", "animal", "location"]
    assert found[5, 0].share == {"color": 1.0}
    assert found[5, 0].entropy == 0
    assert found[6, 0].entropy == max(h.entropy for h in table.heads if h.entropy is not None)
    assert found[6, 0].role == "generalization"
    assert found[5, 0].phrases == HEADS[5, 0]
    assert len(table.attributes) == 3
    assert (table.weights, table.settings["images"], table.settings["k"]) == (WEIGHTS, 7, 3)


def test_the_evidence(table: RoleTable) -> None:
    names = [row["concept"] for row in table.evidence["clusters"]]
    assert {"color", "animal", "location"} <= set(names)
    assert 10 <= len(names) <= 14
    texts = {text for phrases in HEADS.values() for text in phrases}
    assert {point[3] for point in table.evidence["points"]} == texts
    assert table.evidence["phrases"] == len(texts)
    low, high = table.evidence["thresholds"]
    assert low <= high


def test_attributes_by_name() -> None:
    named = replace(FEW, attributes=("animal", "shape"), quantile=0.5)
    table = build_table(HEADS, WEIGHTS, source="by hand", settings=named)
    assert table.attributes == ("animal", "shape")
    assert {h.attribute for h in table.heads if h.role == "core"} == {"animal"}
    with pytest.raises(SettingsError, match=r"there is no concept 'colour'. Known concepts: action, animal"):
        build_table(HEADS, WEIGHTS, source="by hand", settings=replace(FEW, attributes=("colour",)))


def test_heads_without_phrases_and_a_pool_without_concepts() -> None:
    with pytest.raises(DataError, match="no phrase for 1 head; the first is layer 6 head 9"):
        build_table({**HEADS, (6, 9): ()}, WEIGHTS, source="by hand")
    with pytest.raises(SettingsError, match=r"phrases of mine.txt have no concepts"):
        build_table(HEADS, WEIGHTS, source="by hand", named=Pool("mine.txt", ("a dog",)))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("quantile", 0.0), ("quantile", 0.6), ("k", -1), ("shrinkage", 0.0), ("min_sizes", ()),
        ("min_sizes", (1,)), ("seed", -1), ("seed", 2**32), ("attributes", ("color", "color")),
    ],
)  # fmt: skip
def test_settings_that_no_later_step_could_use(key: str, value: Any) -> None:
    with pytest.raises(SettingsError, match=key):
        RoleSettings(**{key: value})
