"""What pages repeat of the code and of stored results is current."""

import dataclasses
import re
import subprocess
import sys
from pathlib import Path

from dear.adapters import bundle_config
from dear.evaluation import records
from dear.evaluation.predictions import ImagePredictions
from dear.evaluation.protocols import PROTOCOLS
from dear.evaluation.recipe import Recipe
from dear.roles import table as tables

ROOT = Path(__file__).parents[2]


def test_the_policy_names_the_schemas() -> None:
    policy = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (run record|bundle|role table)[^|]*\| (\d+) \|", policy, re.M)
    numbers = {"run record": records.SCHEMA, "bundle": bundle_config.SCHEMA, "role table": tables.SCHEMA}
    assert {name: int(number) for name, number in rows} == numbers


def first_column(page: str, head: str, after: str = "") -> set[str]:
    """The names in the first column of the first table with this head, `settings.train` as settings."""
    text = (ROOT / page).read_text(encoding="utf-8")
    table = text[text.index(after) :].partition(f"| {head} |")[2].partition("\n\n")[0]
    cells = re.findall(r"^\| (`[^|]*) \|", table, re.M)
    return {name.partition(".")[0] for cell in cells for name in re.findall(r"`([\w.]+)`", cell)}


def test_the_page_has_every_field_of_records_and_no_other() -> None:
    pick = {"fewshot"}  # written by every run, and not in the schema that is read
    assert first_column("docs/reproduce.md", "field | what") == {*records.Record.__annotations__} | pick
    predictions = first_column("docs/reproduce.md", "array | what", after="### Predictions")
    assert predictions == {*ImagePredictions.__annotations__}


def test_the_page_has_the_keys_of_recipes_and_no_other() -> None:
    kinds = (Recipe, *PROTOCOLS.values())
    keys = {field.name for kind in kinds for field in dataclasses.fields(kind)}
    assert first_column("docs/reproduce.md", "key | what | default") == keys


def test_the_page_holds_the_tables_of_the_benchmarks() -> None:
    process = subprocess.run(
        [sys.executable, "benchmarks/table.py", "--check"], cwd=ROOT, capture_output=True, text=True
    )
    assert process.returncode == 0, process.stderr
