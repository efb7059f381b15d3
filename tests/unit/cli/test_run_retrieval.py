import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dear.backbone.load import load_clip
from dear.cli.run_retrieval import command
from dear.methods.dear.settings import DearSettings
from dear.roles.packaged import role_table
from dear.roles.table import RoleTable


@pytest.fixture
def untrained(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither training nor retrieval: what is under test is the record."""
    found = {"precision": {"color": {"shape": 0.5}}, "chance": {"shape": 0.25}}
    monkeypatch.setattr(
        "dear.evaluation.base_to_novel.adapt_on_base", lambda *_, **__: SimpleNamespace(method=None)
    )
    monkeypatch.setattr("dear.retrieval.world.world_retrieval", lambda *_: found)


def recorded(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text())


@pytest.mark.usefixtures("untrained")
def test_every_role_table_has_a_record_of_its_own_that_tells_it(tmp_path: Path) -> None:
    shuffled = role_table(load_clip("tiny")).shuffled(0)
    shuffled.save(tmp_path / "shuffled.json")

    first = command(out=tmp_path).records[0]
    second = command(out=tmp_path, roles=tmp_path / "shuffled.json").records[0]

    assert first != second
    assert recorded(first)["key"] != recorded(second)["key"]
    told = tmp_path / "told.json"
    told.write_text(json.dumps(recorded(second)["roles"]["table"]))
    assert RoleTable.load(told) == shuffled


@pytest.mark.usefixtures("untrained")
def test_the_same_run_writes_its_record_again(tmp_path: Path) -> None:
    assert command(out=tmp_path).records[0] == command(out=tmp_path).records[0]


@pytest.mark.usefixtures("untrained")
def test_tasks_seeds_and_settings_have_records_of_their_own(tmp_path: Path) -> None:
    found = command(task=["tinted-signs", "fine-shades"], seeds=[1, 2], out=tmp_path)
    assert len(set(found.records)) == 4
    assert (found.precision, found.chance) == ({"color": {"shape": 0.5}}, {"shape": 0.25})
    (other,) = command(task=["tinted-signs"], dear=DearSettings(core_mask="eq9"), out=tmp_path).records
    assert other not in found.records
    assert recorded(other)["settings"]["core_mask"] == "eq9"
    assert recorded(found.records[0])["settings"]["core_mask"] == "exclusive"
