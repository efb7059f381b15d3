"""What pages repeat of the code and of stored results is current."""

import dataclasses
import re
import subprocess
import sys
import tomllib

import pytest

from dear.adapters import bundle_config
from dear.evaluation import records
from dear.evaluation.predictions import ImagePredictions
from dear.evaluation.protocols import PROTOCOLS
from dear.evaluation.recipe import Recipe
from dear.roles import table as tables
from tests.documented import ROOT


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
    assert first_column("docs/reproduce.md", "key | what | default") == keys | {"each"}  # read before them


@pytest.mark.parametrize("script", [["benchmarks/table.py"], ["-m", "benchmarks.study"]])
def test_pages_hold_what_results_and_rows_give(script: list[str]) -> None:
    process = subprocess.run([sys.executable, *script, "--check"], cwd=ROOT, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr


LIMIT = 400


@pytest.mark.parametrize("folder", ["src", "tests", "tools", "benchmarks", "examples"])
def test_no_file_has_more_than_400_lines(folder: str) -> None:
    long = {
        str(path.relative_to(ROOT)): lines
        for path in sorted((ROOT / folder).rglob("*"))
        if path.suffix in (".py", ".js", ".css", ".html")
        and (lines := len(path.read_text(encoding="utf-8").splitlines())) > LIMIT
    }
    assert not long, f"split these by subject: {long}"


PAGE = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
SOURCE = ROOT / "src" / "dear"
PATHS = sorted({span for span in re.findall(r"`([\w/.-]+)`", PAGE) if "/" in span or span.endswith(".py")})


@pytest.mark.parametrize("path", PATHS)
def test_a_path_exists(path: str) -> None:
    assert any((folder / path).exists() for folder in (SOURCE, ROOT))


def test_the_table_of_packages_has_them_all_in_order() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    layers = settings["tool"]["importlinter"]["contracts"][0]["layers"]
    wanted = [name.strip("()") for layer in layers for name in layer.split(" | ")]
    part = PAGE[PAGE.index("| Package |") : PAGE.index("## The path of a photo")]
    first = [line.strip("| ").split(" | ")[0] for line in part.splitlines() if line.startswith("| `")]
    names = [name for cell in first for name in re.findall(r"`(\w+)`", cell)]
    assert {*names} == {*wanted}
    assert names[:12] == wanted[:12]
    figure = (ROOT / "docs/images/layers.svg").read_text(encoding="utf-8")
    assert re.findall(r'font-weight="600">([^<]+)<', figure) == [layer.strip("()") for layer in layers]
