"""Stored files load in this version: what it reads stays readable, and another schema is refused."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dear.adapters import bundle_config
from dear.adapters.bundle import Bundle
from dear.errors import BundleError, DataError, RoleTableError
from dear.evaluation import records
from dear.evaluation.records import read_record
from dear.report.records import read_folder
from dear.roles import table as tables
from dear.roles.table import RoleTable

STORED = Path(__file__).parent / "stored"


def facts_of_record(path: Path) -> Any:
    record = read_record(path)
    assert read_folder(path.parent)
    return record["method"], record["seed"], record["dataset"]["name"]


def facts_of_bundle(path: Path) -> Any:
    bundle = Bundle.from_pretrained(path.parent)
    return bundle.method, bundle.model, len(bundle.classes), bundle.parameters


def facts_of_table(path: Path) -> Any:
    table = RoleTable.load(path)
    return len(table.heads), table.heads[0].layer, table.weights.model


KINDS: dict[str, tuple[str, Callable[[Path], Any], Any, type[Exception]]] = {
    "run record": ("record.json", facts_of_record, ("dear", 1, "street-signs"), DataError),
    "bundle": ("bundle/config.json", facts_of_bundle, ("dear", "tiny", 16, 17_670), BundleError),
    "role table": ("roles.json", facts_of_table, (32, 9, "tiny"), RoleTableError),
}
NUMBERS = {"run record": records.SCHEMA, "bundle": bundle_config.SCHEMA, "role table": tables.SCHEMA}


@pytest.mark.parametrize("kind", KINDS)
def test_a_stored_file_loads(kind: str) -> None:
    name, read, facts, _ = KINDS[kind]
    assert read(STORED / name) == facts


@pytest.mark.parametrize("change", [-1, 1])
@pytest.mark.parametrize("kind", KINDS)
def test_another_schema_is_refused(kind: str, change: int, tmp_path: Path) -> None:
    name, read, _, error = KINDS[kind]
    shutil.copytree(STORED, tmp_path / "stored")
    path = tmp_path / "stored" / name
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | {"schema": NUMBERS[kind] + change}))
    with pytest.raises(error, match=rf"schema\D* {NUMBERS[kind] + change}\b.*this version reads"):
        read(path)
