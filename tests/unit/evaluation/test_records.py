"""Run records: of this schema, in a folder that can be written to."""

import json
from pathlib import Path

import pytest

from dear.data.files import write_json
from dear.errors import DataError, OutputError
from dear.evaluation.records import SCHEMA, environment, make_folder, read_record


def test_a_folder_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for folder in (tmp_path / "file", tmp_path / "file" / "deeper"):
        with pytest.raises(OutputError, match=r"cannot write to .*--out"):
            make_folder(folder)
    assert (tmp_path / "file").read_text() == "mine"
    make_folder(tmp_path / "new" / "er")
    make_folder(tmp_path / "new" / "er")
    assert (tmp_path / "new" / "er").is_dir()


@pytest.mark.parametrize("content", ["", '{"schema": 1', "[1, 2]", "7", "\x00"])
def test_a_damaged_record_is_refused(content: str, tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text(content)
    with pytest.raises(DataError, match=r"run\.json is not a run record"):
        read_record(path)


@pytest.mark.parametrize("record", [{"schema": SCHEMA + 1}, {}])
def test_another_schema_is_refused(record: dict[str, int], tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text(json.dumps(record))
    with pytest.raises(DataError, match=f"reads {SCHEMA}. Remove it and run"):
        read_record(path)


def test_the_environment_is_plain(tmp_path: Path) -> None:
    write_json(tmp_path / "e.json", environment())
    assert {"dear", "python", "torch", "open_clip", "threads"} <= set(
        json.loads((tmp_path / "e.json").read_text())
    )
