"""Files around a run: records, recipes, options, role tables and the phrases they are made from."""

import contextlib
import json
import random
import shutil
from pathlib import Path

from dear.errors import DearError
from dear.evaluation.launch.claims import MARK, check_folders, claimed
from dear.evaluation.recipe import load_recipe, load_recipes
from dear.evaluation.records import read_record
from dear.report.folder import write_folder_report
from dear.roles.packaged import FOLDER as TABLES
from dear.roles.table import RoleTable
from dear.roles.textspan_format import in_layers, read_textspan
from dear.writing import LIST, output_folder
from tests.conftest import WORDS
from tests.fuzz.readers.target import TakenOver, command, written
from tests.unit.report import samples

ROOT = Path(__file__).parents[3]


RECORD = "tools-dear-16shot-seed1-0123abcd.json"
"""A name by which a report knows a record: a file of another name that is no JSON is none."""


def record(folder: Path) -> Path:
    table = samples.role_table()
    roles = {"source": "by hand", "table": table}
    one = samples.record("tools", "dear", 0.8, 0.6, variant="a\x1b[31m", roles=roles)
    return written(folder / RECORD, json.dumps(one))


def report(file: Path) -> None:
    with contextlib.suppress(DearError):
        read_record(file)
    shutil.rmtree(file.parent / "out", ignore_errors=True)
    files = write_folder_report(file.parent, file.parent / "out").files
    if raw := [path for path in files if path.suffix != ".png" and b"\x1b" in path.read_bytes()]:
        raise TakenOver(f"{raw[0].name} has a raw escape")


def transfer(folder: Path) -> Path:
    results = {"source": {"accuracy": 0.5}, "targets": {"toys": {"accuracy": 0.25}}}
    target = {"name": "toys", "title": "Toys", "identity": "of toys"}
    one = samples.record(
        "tools", "dear", 0, 0, protocol="cross-dataset", results=results, targets=[target], schema=2
    )
    return written(folder / RECORD, json.dumps(one))


def retrieval(folder: Path) -> Path:
    run = samples.record("tools", "dear", 0.8, 0.6)
    written(folder / "run.json", json.dumps(run))
    one = run | {"protocol": "retrieval", "results": samples.neighbours(), "key": "r"}
    return written(folder / RECORD, json.dumps(one))


def recipe(folder: Path) -> Path:
    found = sorted(ROOT.glob("recipes/*/*.yaml"))
    return written(folder / "recipe.yaml", random.Random(len(str(folder))).choice(found).read_bytes())


def run_recipe(file: Path) -> None:
    for one in load_recipes(file):
        one.runs()


def mark(folder: Path) -> Path:
    """Whose runs a folder holds."""
    (folder / "out").mkdir()
    return written(folder / "out" / MARK, "recipe\n")


def claim(file: Path) -> None:
    path = written(file.parents[1] / "recipe.yaml", "protocol: few-shot\nout: out\n")
    experiment = load_recipe(path, file.parents[1])
    check_folders([experiment])
    with claimed(experiment):
        pass


def options(folder: Path) -> Path:
    lines = {"data": ["street-signs"], "methods": ["dear"], "shots": 4, "train": {"epochs": 3, "lr": 0.001}}
    return written(folder / "options.yaml", json.dumps(lines | {"seeds": [1, 2], "select": "last"}))


def with_options(file: Path) -> None:
    command("run", "base-to-novel", "--config", file, "--data", "nowhere", "--out", file.parent / "out")


def listed(folder: Path) -> Path:
    """The list of the files of a report, beside a file that is not in it."""
    output_folder(folder / "out", {"index.html": b"a", "old.html": b"b"}, "a report", "")
    written(folder / "out" / "mine.html", "mine")
    return folder / "out" / LIST


def replace_listed(file: Path) -> None:
    output_folder(file.parent, {"index.html": b"c"}, "a report", "")
    if not (mine := file.parent / "mine.html").is_file() or mine.read_bytes() != b"mine":
        raise TakenOver("a file that is not of the report is gone")
    if (file.parent / "index.html").read_bytes() != b"c":
        raise TakenOver("the report was not replaced")


def roles(folder: Path) -> Path:
    return written(folder / "roles.json", (TABLES / "tiny_discovered.json").read_bytes())


def show_roles(file: Path) -> None:
    table = RoleTable.load(file)
    for layer in (9, 12):
        with contextlib.suppress(DearError):
            table.layer(layer, 6)
    table.shuffled(1).random(2)
    command("roles", "show", file, "--html", file.parent / "roles.html")


def spans(folder: Path) -> Path:
    heads = ((layer, head) for layer in (8, 9) for head in range(3))
    lines = [f"{'-' * 18}\nLayer {a}, Head {b}\n{'-' * 18}\na photo\na sea at {a}\n" for a, b in heads]
    return written(folder / "spans.txt", "".join(lines))


def read_spans(file: Path) -> None:
    in_layers(read_textspan(file), (9, 10))


def phrases(folder: Path) -> Path:
    return written(folder / "phrases.txt", "".join(f"a photo of {word}\n" for word in WORDS))
