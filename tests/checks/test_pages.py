"""What pages repeat of the code and of stored results is current."""

import csv
import dataclasses
import re
import subprocess
import sys
import tomllib
from statistics import fmean

import pytest

from dear.adapters import bundle_config
from dear.evaluation import records
from dear.evaluation.predictions import ImagePredictions
from dear.evaluation.protocols import PROTOCOLS
from dear.evaluation.recipe import Recipe
from dear.roles import table as tables
from dear.world.names import downstream_names
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


def test_the_page_holds_the_tables_of_the_benchmarks() -> None:
    process = subprocess.run(
        [sys.executable, "benchmarks/table.py", "--check"], cwd=ROOT, capture_output=True, text=True
    )
    assert process.returncode == 0, process.stderr


def runs_of(name: str) -> list[dict[str, str]]:
    with (ROOT / "docs/measured" / name).open(newline="", encoding="utf-8") as file:
        return [*csv.DictReader(file)]


def cells_after(page: str, begin: str) -> list[list[str]]:
    """The rows of the first table after some text, with its head."""
    text = (ROOT / page).read_text(encoding="utf-8").partition(begin)[2]
    lines = re.findall(r"^\| (.*) \|$", text[text.index("| ") :].partition("\n\n")[0], re.M)
    rows = [[cell.strip(" `") for cell in line.split(" | ")] for line in lines]
    return [rows[0], *rows[2:]]


def test_the_table_of_photographs_has_the_means_of_its_runs() -> None:
    runs = runs_of("photographs.csv")
    (_, *methods), *rows = cells_after("docs/choose.md", "## On photographs")
    assert methods == ["dear+", "linear-probe"]
    for shots, *cells in rows:
        for method, cell in zip(methods, cells, strict=True):
            of_seeds = [run["accuracy"] for run in runs if (run["method"], run["shots"]) == (method, shots)]
            assert cell == f"{fmean(map(float, of_seeds)):.1f}", (method, shots)


@pytest.mark.parametrize(
    ("begin", "parts"), [("small-apart", ["base", "novel"]), ("small-joint", ["joint_base", "joint_novel"])]
)
def test_the_tables_of_small_tasks_have_the_means_of_their_runs(begin: str, parts: list[str]) -> None:
    small, runs = downstream_names(size="small"), runs_of("base_to_novel.csv")
    _, *rows = cells_after("recipes/study/TABLES.md", f"<!-- {begin}: begin -->")
    for method, seeds, *cells in rows:
        of_method = [run for run in runs if run["method"] == method and run["data"] in small]
        counted = [run for run in of_method if run["seed"] in seeds.split(", ")]
        assert len(counted) == len(small) * len(seeds.split(", "))
        for part, cell in zip(parts, cells, strict=False):
            assert cell == f"{fmean(float(run[part]) for run in counted):.1f}", method


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
