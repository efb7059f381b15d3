"""Files of every schema that is still read load in this version, and would in the next."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dear.adapters.bundle import Bundle
from dear.adapters.bundle_config import BUNDLES
from dear.errors import BundleError, DataError, RoleTableError
from dear.evaluation.records import read_record
from dear.evaluation.schema import RECORDS
from dear.reading.files import ReadingError
from dear.reading.schema import Schema
from dear.report.folder import write_folder_report
from dear.roles.schema import TABLES
from dear.roles.table import RoleTable

STORED = Path(__file__).parent / "stored"
POLICY = Path(__file__).parents[2] / "docs" / "compatibility.md"


def seed_of_record(path: Path) -> Any:
    record = read_record(path)
    return record["method"], record["seed"], record["dataset"]["name"]


def facts_of_bundle(path: Path) -> Any:
    bundle = Bundle.from_pretrained(path)
    return bundle.method, bundle.model, len(bundle.classes), bundle.parameters


def facts_of_table(path: Path) -> Any:
    table = RoleTable.load(path)
    return len(table.heads), table.heads[0].layer, table.weights.model


KINDS: dict[str, tuple[Schema, Callable[[Path], Any], Any, type[Exception]]] = {
    "record": (RECORDS, seed_of_record, ("dear", 1, "street-signs"), DataError),
    "bundle": (BUNDLES, facts_of_bundle, ("dear", "tiny", 16, 17_670), BundleError),
    "roles": (TABLES, facts_of_table, (32, 9, "tiny"), RoleTableError),
}


def place(kind: str, number: int) -> Path:
    return STORED / f"{kind}-{number}{'' if kind == 'bundle' else '.json'}"


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_of_each_schema_that_is_read_is_stored_and_loads(kind: str) -> None:
    schema, read, facts, _ = KINDS[kind]
    for number in range(schema.oldest, schema.now + 1):
        assert read(place(kind, number)) == facts
    stored = {int(re.findall(r"\d+", path.name)[0]) for path in STORED.glob(f"{kind}-*")}
    assert stored == {*range(schema.oldest, schema.now + 1)}


def test_the_policy_names_the_schemas() -> None:
    rows = re.findall(
        r"^\| (run record|bundle|role table)[^|]*\| (\d+) \| (\d+) \|", POLICY.read_text(), re.M
    )
    told = {name: (int(now), int(oldest)) for name, now, oldest in rows}
    named = {"run record": RECORDS, "bundle": BUNDLES, "role table": TABLES}
    assert told == {name: (schema.now, schema.oldest) for name, schema in named.items()}


@pytest.mark.parametrize("kind", KINDS)
def test_todays_files_load_in_the_next_version(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A next version that writes another schema, with a step from today's."""
    schema, read, facts, error = KINDS[kind]
    path = place(kind, schema.now)
    before = {file: file.read_bytes() for file in [path, *path.rglob("*")] if file.is_file()}
    seen: list[dict[str, Any]] = []

    def step(content: dict[str, Any]) -> dict[str, Any]:
        seen.append(content)
        return content

    monkeypatch.setattr(schema, "now", schema.now + 1)
    with pytest.raises(error, match="schema"):
        read(path)
    monkeypatch.setattr(schema, "steps", {schema.now - 1: step})
    assert read(path) == facts
    assert seen
    assert {file: file.read_bytes() for file in before} == before


def test_a_report_reads_old_records_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "0.json").write_bytes(place("record", RECORDS.now).read_bytes())
    monkeypatch.setattr(RECORDS, "now", RECORDS.now + 1)
    monkeypatch.setattr(RECORDS, "steps", {RECORDS.now - 1: lambda content: content})
    assert write_folder_report(tmp_path).records == 1


class TestSteps:
    CHAIN = Schema(
        now=5,
        steps={
            1: lambda content: content,  # nothing leads from 2 to 3, so 1 is out of reach
            3: lambda content: {"names": [content["name"]]},
            4: lambda content: {"names": content["names"], "count": len(content["names"])},
        },
    )

    def test_they_are_taken_in_order_and_the_given_content_stays(self) -> None:
        old = {"schema": 3, "name": "a"}
        assert self.CHAIN.oldest == 3
        assert self.CHAIN.current(old, "x") == {"schema": 5, "names": ["a"], "count": 1}
        assert old == {"schema": 3, "name": "a"}

    @pytest.mark.parametrize("number", [1, 2, 5, 6, True, "3", None])
    def test_what_no_step_leads_from_is_left_to_the_reader(self, number: object) -> None:
        content = {"schema": number, "name": "a"}
        assert self.CHAIN.current(content, "x") is content

    def test_content_that_a_step_cannot_read_is_refused(self) -> None:
        with pytest.raises(ReadingError, match=r"x: its content is not of schema 3 \(KeyError: 'name'\)"):
            self.CHAIN.current(json.loads('{"schema": 3}'), "x")
