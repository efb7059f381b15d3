"""Records that are odd: work is linear, and no control character reaches a text."""

import json
from pathlib import Path
from typing import Any

import pytest

from dear.errors import DataError
from dear.report.drawing import Drawing, Omission
from dear.report.folder import read_folder, write_folder_report
from dear.report.intervals import t_quantile
from dear.report.protocols.retrieval import averaged
from dear.report.records import distinct, distinct_by_key, mean_fusion_weights
from dear.report.training_plots import training_curves
from tests.unit.report.samples import record

MISTAKES = {
    "part": ["base"], "classes": ["a"], "images": [1], "correct": [1], "predicted": [1], "confusions": [],
    "left_out": 0, "examples": [],
}  # fmt: skip


class Key(str):
    """A text that counts how often it is compared."""

    __slots__ = ()
    compared = 0
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        Key.compared += 1
        return str.__eq__(self, other)


def test_distinct_values_are_found_in_linear_time() -> None:
    keys = [Key(f"key {number}") for number in range(100_000)]
    Key.compared = 0
    assert distinct([*keys, *keys]) == keys
    assert Key.compared < 10**6  # of 10^10 pairs
    # Equal as before, whatever can be hashed: 1 and 1.0, lists, mappings in any order.
    values = [1, "1", 1.0, [1, {"a": [2]}], {"a": 1, "b": []}, None, {"b": [], "a": 1.0}, [1.0, {"a": [2]}]]
    assert distinct(values) == [1, "1", [1, {"a": [2]}], {"a": 1, "b": []}, None]


def test_values_by_key() -> None:
    assert distinct_by_key([{"a": 1, "b": [2]}, {"b": [2], "c": 3}, {"b": [4]}]) == {
        "a": [1, None],
        "b": [[2], [4]],
        "c": [3, None],
    }
    # 1,000 mappings with 100 keys of their own: 10^8 look-ups if each key were asked for everywhere.
    mappings = [{f"{number} {key}": 0 for key in range(100)} for number in range(1000)]
    assert len(distinct_by_key(mappings)) == 100_000
    runs = [record("tools", "dear", 0.5, 0.5, fusion_weights=dict(weights)) for weights in mappings]
    runs[0]["fusion_weights"]["cls"] = 0.5
    assert mean_fusion_weights(runs)["Tools"]["cls"] == pytest.approx(0.0005)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train": {"epochs": [{"loss": 2.0}, {"loss": 1e308}]}}, r"train.epochs\[1\].loss is 1e\+308"),
        ({"train": {"epochs": [{"loss": -1e308}]}}, "loss is -1e.308: it must be a number from -3.4e.38"),
        ({"settings": {"method": "beta"}}, "settings.method is 'beta': it must be keys and values"),
        ({"seconds": {"train": 1e308}}, "seconds.train is"),
        ({"fusion_weights": {"cls": 1e39}}, "fusion_weights.cls is"),
    ],
)
def test_what_is_refused_names_the_file(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text(json.dumps(record("tools", "dear", 0.5, 0.5)))
    assert len(read_folder(tmp_path)) == 1
    path.write_text(json.dumps(record("tools", "dear", 0.5, 0.5) | changes))
    with pytest.raises(DataError, match=rf"run\.json: .*{message}.* Remove it"):
        read_folder(tmp_path)


def test_the_largest_losses_are_drawn(tmp_path: Path) -> None:
    epochs = [{"loss": 3.4e38}, {"loss": -3.4e38}]
    (tmp_path / "run.json").write_text(
        json.dumps(record("tools", "dear", 0.5, 0.5, train={"epochs": epochs}))
    )
    assert (tmp_path / "report" / "figure-training.svg") in write_folder_report(tmp_path).files


def test_curves_of_too_many_epochs_are_left_out() -> None:
    assert isinstance(training_curves({"tools": [0.5] * 20_000}), Drawing)
    assert isinstance(training_curves({"tools": [0.5] * 20_000, "toys": [0.5]}), Omission)


def test_retrievals_that_lack_a_feature_or_a_factor() -> None:
    first = {"precision": {"cls": {"color": 0.5}, "shape": {}}, "chance": {"color": 0.25}}
    other = {"precision": {"cls": {"color": 0.7}}, "chance": {"color": 0.25}}
    mean = averaged([first, other, {"chance": {"color": 0.25}}])
    assert mean["precision"] == {"cls": {"color": pytest.approx(0.6)}}


@pytest.mark.parametrize("part", [["x", -1], ["x", True]])
def test_a_value_has_one_path(tmp_path: Path, part: list[Any]) -> None:
    """Ten lists of one value each, counted from either end, gave 1,024 paths to a table: 56.6 s."""
    run = record("tools", "dear", 0.5, 0.5)
    run["results"]["x"] = [run["results"]["base"]] * 2
    (tmp_path / "run.json").write_text(json.dumps(run | {"mistakes": [MISTAKES | {"part": ["x", 0]}]}))
    read_folder(tmp_path)
    (tmp_path / "run.json").write_text(json.dumps(run | {"mistakes": [MISTAKES | {"part": part}]}))
    with pytest.raises(DataError, match=r"lacks 'results\.x\.-1'|its mistakes\[0\]\.part"):
        read_folder(tmp_path)


def test_a_target_is_named_once(tmp_path: Path) -> None:
    """A table of scores was checked for each of 999 targets of one name: 226 kB took 55.9 s."""
    run = record("tools", "dear", 0.5, 0.5, protocol="cross-dataset")
    scores = run["results"]["base"]
    run["results"] = {"source": scores, "targets": {"toys": scores}}
    (tmp_path / "run.json").write_text(json.dumps(run | {"targets": [{"name": "toys"}]}))
    read_folder(tmp_path)
    (tmp_path / "run.json").write_text(json.dumps(run | {"targets": [{"name": "toys"}] * 2}))
    with pytest.raises(DataError, match="its targets name a data set twice"):
        read_folder(tmp_path)


def test_a_quantile_is_computed_once_for_each_number_of_degrees() -> None:
    t_quantile.cache_clear()
    assert [t_quantile(0.975, 10) for _ in range(9)] == [pytest.approx(2.228, abs=1e-3)] * 9
    assert t_quantile.cache_info().misses == 1


def test_no_control_character_of_a_record_reaches_a_text(tmp_path: Path) -> None:
    title = "To\x1b[31m\u202eols</script>"
    dataset = {"name": "to\x1bols", "title": title, "classes": ["a\x1b[2J", "b\u2066"]}
    mistakes = {
        "part": ["base"], "classes": dataset["classes"], "images": [2, 2], "correct": [1, 2],
        "predicted": [1, 3], "confusions": [[0, 1, 1]], "left_out": 0, "examples": [],
    }  # fmt: skip
    changes = {
        "variant": "v\x1b[3m\x07", "dataset": dataset, "settings": {"method": {"a\x1b": "\x9b"}},
        "environment": {"c\x1b": "d\x00"}, "fusion_weights": {"f\x1b": 1.0}, "mistakes": [mistakes],
    }  # fmt: skip
    runs = [
        record("tools", "zero-shot", 0.4, 0.5, dataset=dataset),
        record("tools", "dear", 0.5, 0.6) | changes,
    ]
    for number, run in enumerate(runs):
        (tmp_path / f"{number}.json").write_text(json.dumps(run))
    texts = {
        path.name: path.read_text() for path in write_folder_report(tmp_path).files if path.suffix != ".png"
    }
    assert {"report.html", "report.md", "base-to-novel.tex", "figure-bars.svg", "classes.csv"} <= {*texts}
    for name, text in texts.items():
        assert not {*"\x00\x07\x1b\x9b\u202e\u2066"} & {*text}, name
    assert "</script>" not in texts["report.html"]
    assert r"To\x1b[31m\u202eols&lt;/script&gt;" in texts["report.html"]
    assert r"(v\x1b[3m\x07)" in texts["figure-bars.svg"]
