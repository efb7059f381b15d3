"""Run records: of this schema, in a folder that can be written to."""

import json
from pathlib import Path
from typing import Any

import pytest

from dear.backbone.clip import Clip
from dear.errors import DataError, DearError
from dear.evaluation.records import SCHEMA, read_record
from dear.evaluation.resolve import MethodSetup
from tests.helpers.data import noise_dataset
from tests.helpers.runs import run_all


@pytest.mark.parametrize(
    "content", ["", '{"schema": 1', "[1, 2]", "\x00", json.dumps({"schema": SCHEMA + 1})]
)
def test_a_damaged_record_or_one_of_another_schema(content: str, tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text(content)
    with pytest.raises(DataError, match=r"run\.json is not a run record"):
        read_record(path)


def sample() -> dict[str, Any]:
    return {
        "schema": SCHEMA, "protocol": "base-to-novel", "method": "dear", "seed": 1, "shots": 16,
        "dataset": {"name": "tools", "title": "Tools", "identity": "x"},
        "weights": {"model": "tiny", "pretrained": "world", "sha256": "ab"},
        "results": {"base": {"accuracy": 0.5}, "novel": {"accuracy": 1}},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"seed": True}, "seed"),
        ({"protocol": ["few-shot"]}, "protocol"),
        ({"targets": [{"title": "x"}]}, r"targets\[0\].*'name'"),
        ({"results": {"base": {"accuracy": 0.5}}}, r"'results\.novel'"),
    ],
)
def test_a_record_with_a_wrong_value_inside_is_refused(
    changes: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    path = tmp_path / "run.json"
    path.write_text(json.dumps(sample()))
    assert read_record(path) == sample()
    path.write_text(json.dumps(sample() | changes))
    with pytest.raises(DearError, match=reason):
        read_record(path)


def test_the_record_of_another_run_under_a_runs_name(small_clip: Clip, tmp_path: Path) -> None:
    """It was taken for the run's, so that a table had one seed twice."""
    options: dict[str, Any] = {"methods": [MethodSetup("zero-shot")], "shots": 1, "out": tmp_path}
    for seed in (1, 2):
        run_all(small_clip, [noise_dataset()], seeds=[seed], **options)
    first, second = sorted(tmp_path.glob("*.json"))
    first.write_bytes(second.read_bytes())
    for label in ("a", "b"):  # of one method with one key
        run_all(
            small_clip, [noise_dataset()], **options | {"methods": [MethodSetup("zero-shot", label=label)]}
        )
    named, other = (next(tmp_path.glob(f"*-{label}-*.json")) for label in "ab")
    named.write_bytes(other.read_bytes())
    for changes, field in (
        ({"methods": [MethodSetup("zero-shot", label="a")]}, "variant"),
        ({"seeds": [1]}, "key"),
    ):
        with pytest.raises(DataError, match=f"another run, whose {field} is"):
            run_all(small_clip, [noise_dataset()], **options | changes)
