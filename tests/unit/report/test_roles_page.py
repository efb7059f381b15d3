"""The page of a role table: figures for what the table holds, escaped text, nothing from elsewhere."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from dear.report.roles_page import phrase_map, roles_page, write_roles_page
from dear.roles.table import RoleTable


def table(**changes: Any) -> RoleTable:
    """Two layers of three heads, with all the evidence that a discovered table has."""
    rows = [
        (9, 0, "core", "color", 0.2, {"color": 0.9, "shape": 0.1}, ["red & <b>", "blue"]),
        (9, 1, "mixed", None, 0.9, {"shape": 0.6, "style": 0.4}, ["a circle"] * 11),
        (9, 2, "generalization", None, 1.3, {"style": 1.0}, ["a sketch"]),
        (10, 0, "other-specialized", None, 0.1, {"animal": 1.0}, ["a dog"]),
        (10, 1, "mixed", None, 0.8, {"color": 0.5, "animal": 0.5}, ["teal"]),
        (10, 2, "core", "shape", 0.15, {"shape": 1.0}, ["a square"]),
    ]
    heads = [
        {
            "layer": layer, "head": head, "role": role, "attribute": attribute, "concept": next(iter(share)),
            "entropy": entropy, "share": share, "phrases": phrases,
        }
        for layer, head, role, attribute, entropy, share, phrases in rows
    ]  # fmt: skip
    clusters = [{"concept": "color", "size": 31, "exemplars": ["red & <b>"]}]
    clusters += [{"concept": "animal", "size": 17, "exemplars": []}]
    evidence = {
        "clusters": clusters,
        "dbcv": 0.31,
        "tried": [
            {"min_size": 15, "selection": "eom", "clusters": 2, "left_out": 0.1, "dbcv": 0.31},
            {"min_size": 99, "selection": "eom", "clusters": 1, "left_out": 0.0, "dbcv": None},
        ],
        "dbcv_by_k": {"3": 0.25},
        "thresholds": [0.15, 0.9],
        "phrases": 7,
        "left_out_by_hdbscan": 2,
        "points": [[0.0, 1.0, "color", "red & <b>"], [2.0, 1.5, "animal", "a dog"], [1.0, 1.0, "color", "x"]],
    }
    weights = {"model": "small", "pretrained": "random", "sha256": "ab" * 32}
    whole = {"schema": 1, "source": "by <hand>", "weights": weights, "attributes": ["color", "shape"]}
    settings = {"k": 2, "min_sizes": [15, 99]}
    content = {**whole, "heads": heads, "settings": settings, "evidence": evidence, **changes}
    return RoleTable.from_json(content, "the table")


def test_everything_that_the_table_holds(tmp_path: Path) -> None:
    path = write_roles_page(tmp_path / "deep" / "roles.html", table())
    page = path.read_text(encoding="utf-8")
    assert page.count("<svg") == 2
    assert "color 90% · shape 10%" in page
    assert "by &lt;hand&gt;" in page
    assert "red &amp; &lt;b&gt;" in page
    assert '<b>"' not in page
    assert "2 clusters (DBCV 0.31); HDBSCAN leaves out 2 of the heads' 7 phrases" in page.replace(
        "&#39;", "'"
    )
    assert "at or below 0.15 nats" in page
    assert "1 more" in page  # of the eleven phrases of layer 9, head 1
    assert "K = 3: 0.250." in page
    assert "15, 99" in page
    assert page == roles_page(table())
    assert [one.name for one in path.parent.iterdir()] == ["roles.html"]


def test_a_table_without_evidence() -> None:
    """The published one has roles and concepts only."""
    bare = [replace(head, entropy=None, share={}, phrases=()) for head in table().heads]
    page = roles_page(replace(table(), heads=tuple(bare), evidence={}, settings={}))
    assert page.count("<svg") == 1
    for absent in ("concept entropy at or below", "Concept clusters", "How it was computed"):
        assert absent not in page


def test_what_the_map_of_phrases_says() -> None:
    drawing = phrase_map(table())
    assert drawing is not None
    assert "Map of 3 phrases by concept: color 2, animal 1." in drawing.description
