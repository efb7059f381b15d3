"""The report of a folder: files, one set of weights, copied records counted once."""

import csv
import json
import re
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dear.cli.main import main as cli
from dear.errors import DataError, UnknownNameError
from dear.evaluation.predictions import predictions_file
from dear.evaluation.protocols import PROTOCOLS
from dear.evaluation.records import is_record_name, run_name
from dear.report.records import read_folder
from dear.report.report_page import write_folder_report
from dear.writing import csv_text
from tests.helpers.records import ablated, few, moved, predictions, record, role_table

NAME = "tools-dear-all-mixed-16shot-seed1-0123abcd.json"


def put(folder: Path, records: list[dict[str, Any]]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number, one in enumerate(records):
        (folder / f"{number}.json").write_text(json.dumps(one))


def all_protocols() -> list[dict[str, Any]]:
    roles = {"source": "by hand", "table": role_table()}
    records = [record("tools", "zero-shot", 0.4, 0.5), ablated("tools", None, 0.8, 0.6, roles=roles)]
    records += [ablated("tools", "CE", 0.7, 0.5), few("tools", "dear", 1, 0.4), few("tools", "dear", 2, 0.6)]
    records += [moved("dear", 0.7, {"toys": 0.5}), moved("dear", 0.7, {"cars": 0.5}, "domain-generalization")]
    return records


def test_all_that_is_written(tmp_path: Path) -> None:
    put(tmp_path / "a", all_protocols())
    put(tmp_path / "b", all_protocols()[:2])  # copies, as recipes that share runs leave them
    (tmp_path / "a" / "other.json").write_text('{"not": "a record"}')
    made = write_folder_report(tmp_path, title="All <of> it")
    assert made.records == 7
    names = [grid.name for grid in made.tables]
    assert names == [
        "base-to-novel", "base-to-novel-methods", "base-to-novel-paired", "ablation-loss",
        "ablation-inference", "cross-dataset", "domain-generalization", "few-shot", "fusion",
    ]  # fmt: skip
    wanted = {f"{name}.csv" for name in names} | {"report.html", "report.md", "report.csv", "report.tex"}
    figures = ("few-shot", "gains", "roles", "training")
    wanted |= {f"figure-{name}.{kind}" for name in figures for kind in ("svg", "pdf")}
    assert (tmp_path / "report" / "figure-gains.pdf").read_bytes().startswith(b"%PDF")
    assert {path.name for path in (tmp_path / "report").iterdir()} == wanted
    assert {path.name for path in made.files} == wanted
    assert "| CE | 70.00 | 50.00 |" in (tmp_path / "report" / "report.md").read_text()
    with (tmp_path / "report" / "report.csv").open(newline="") as file:
        runs = [tuple(row.values()) for row in csv.DictReader(file)]
    facts = ("zero-shot", "", "tiny", "world", "tools", "2", "1", "16")
    assert ("base-to-novel", *facts, "novel", "accuracy", "0.5", "") in runs
    page = made.html.read_text()
    assert "All &lt;of&gt; it" in page
    for name in names[1:]:
        assert f'<h2 id="{name}">' in page
    assert 'id="roles"' in page  # the role table comes from the records
    assert "http" not in page.replace("http://www.w3.org", "")
    again = write_folder_report(tmp_path, title="All <of> it")  # its own files are no records
    assert again.html.read_text() == page


def test_different_weights_are_never_averaged(tmp_path: Path) -> None:
    other = {"model": "tiny", "pretrained": "other", "sha256": "cd" * 32}
    records = [record("tools", "dear", 0.8, 0.6), record("tools", "dear", 0.2, 0.2, seed=2, weights=other)]
    put(tmp_path, records)
    with pytest.raises(
        DataError, match=r"must not be averaged: abababababab \(tiny/world\), cdcdcdcdcdcd \(tiny/other\)"
    ):
        write_folder_report(tmp_path)
    assert not (tmp_path / "report").exists()
    with pytest.raises(DataError, match="'ef'"):
        write_folder_report(tmp_path, weights="ef")
    assert write_folder_report(tmp_path, weights="cd").records == 1
    for empty in ("none", "report/none"):
        with pytest.raises(DataError, match="none"):
            write_folder_report(tmp_path / empty)


def test_records_of_two_codes_are_told(tmp_path: Path) -> None:
    put(
        tmp_path,
        [
            record("tools", "dear", 0.8, 0.6, seed=seed) | {"environment": {"code": code}}
            for seed, code in enumerate(("0a", "0a", "1b"))
        ],
    )
    with pytest.warns(UserWarning, match=r"2 versions .* 0a \(2 records\), 1b \(1 record\)"):
        page = write_folder_report(tmp_path).html.read_text()
    assert "0a (2 records), 1b (1 record)" in page


@pytest.mark.parametrize("text", ["", '{"schema": 2, "proto', "[]", '{"x": 1}'])
def test_other_files_are_ignored_but_a_record_is_told(text: str, tmp_path: Path) -> None:
    """A report of a project stopped at the settings of an editor, and told to remove them."""
    put(tmp_path, [record("tools", "dear", 0.8, 0.6)])
    (tmp_path / "settings.json").write_text(text)
    assert len(read_folder(tmp_path)) == 1
    (tmp_path / NAME).write_text(text)
    with pytest.raises(DataError, match=f"{NAME} is not a run record"):
        read_folder(tmp_path)


def test_hidden_folders_are_not_entered(tmp_path: Path) -> None:
    """An editor keeps copies of records there, damaged ones too."""
    top = tmp_path / ".runs"  # this one the user names
    put(top, [record("tools", "dear", 0.8, 0.6)])
    put(top / "deep" / ".ipynb_checkpoints" / "deeper", [record("toys", "dear", 0.8, 0.6)])
    (top / "deep" / ".ipynb_checkpoints" / NAME).write_text("")
    assert len(read_folder(top)) == 1


def test_a_record_is_known_by_the_name_that_its_run_gives_it() -> None:
    for protocol, seed in product((PROTOCOLS[name]() for name in PROTOCOLS), (2, -2)):
        name = run_name(protocol, "cups", "mmrl++", None, seed, 16, "0123456789abcdef")
        assert is_record_name(f"{name}.json")
        assert not is_record_name(f"{name}.pt")
    assert not is_record_name("cups-mmrl-16shot.json")


def test_names_are_no_formulas_and_titles_no_markdown(tmp_path: Path) -> None:
    records = [record("tools", "dear", 0.8, 0.6)]
    records[0]["dataset"]["title"] = '=HYPERLINK("x")'
    put(tmp_path, records)
    title = "A `b` *c* [d](e:f)\n![g](h) <i>|j\\"
    write_folder_report(tmp_path, title=title)
    first = (tmp_path / "report/report.md").read_text().splitlines()[0]
    assert first == r"# A \`b\` \*c\* \[d\](e:f) !\[g\](h) \<i>\|j" + 2 * "\\"
    with (tmp_path / "report/base-to-novel.csv").open(newline="") as file:
        labels = [line[0] for line in csv.reader(file)]
    assert labels[1:3] == ['\'=HYPERLINK("x"): chance', '\'=HYPERLINK("x"): dear']


@pytest.mark.parametrize(
    ("text", "cell"),
    [
        ("red;=1+1", "red;'=1+1"),
        ("\uff1d1+1", "'\uff1d1+1"),
        (" =1", "' =1"),
        ("a\n-b\t=c\r", "a\n'-b\t'=c\\x0d"),
        ("sea-horse; ant = bee", "sea-horse; ant = bee"),
    ],
)
def test_what_a_spreadsheet_may_split_is_no_formula(text: str, cell: str) -> None:
    assert csv_text(text) == cell


def dataset(**changes: Any) -> dict[str, Any]:
    return {"dataset": {"name": "tools", "classes": ["ant", "bee"]} | changes}


def test_no_control_character_of_a_record_reaches_a_text(tmp_path: Path) -> None:
    title = "To\x1b[31m\u202eols</script>"
    dataset = {"name": "to\x1bols", "title": title, "classes": ["a\x1b[2J", "b\u2066"]}
    changes = {
        "variant": "v\x1b[3m\x07", "dataset": dataset, "settings": {"method": {"a\x1b": "\x9b"}},
        "environment": {"c\x1b": "d\x00"}, "fusion_weights": {"f\x1b": 1.0},
    }  # fmt: skip
    runs = [
        record("tools", "zero-shot", 0.4, 0.5, dataset=dataset),
        record("tools", "dear", 0.5, 0.6) | changes,
    ]
    for number, run in enumerate(runs):
        (tmp_path / f"{number}.json").write_text(json.dumps(run))
    made = predictions([[1, 0], [1]], classes=np.array(dataset["classes"]))
    (tmp_path / "1.npz").write_bytes(predictions_file({"base": made}))
    files = [path for path in write_folder_report(tmp_path).files if path.suffix != ".pdf"]
    texts = {path.name: path.read_text() for path in files}
    assert {"report.html", "report.md", "report.tex", "figure-gains.svg", "classes.csv"} <= {*texts}
    for name, text in texts.items():
        assert not {*"\x00\x07\x1b\x9b\u202e\u2066"} & {*text}, name
    assert "</script>" not in texts["report.html"]
    assert r"To\x1b[31m\u202eols&lt;/script&gt;" in texts["report.html"]
    assert r"(v\x1b[3m\x07)" in texts["figure-gains.svg"]


def test_a_report_of_some_methods_and_data_about_one_of_them(tmp_path: Path) -> None:
    runs = [
        record(data, method, base, 0.5)
        for data in ("tools", "toys")
        for method, base in (("zero-shot", 0.4), ("dear", 0.8), ("coop", 0.7))
    ]
    put(tmp_path, runs)
    made = write_folder_report(tmp_path, main="coop", methods=["zero-shot", "coop"], data=["toys"])
    assert made.records == 2
    labels = {row.name for grid in made.tables if grid.name == "base-to-novel" for row in grid.rows}
    assert {"zero-shot", "coop"} <= labels
    assert "dear" not in labels
    page = made.html.read_text()
    assert "coop: harmonic mean (HM) 58.3%" in page  # 2 * 70 * 50 / 120
    with pytest.raises(UnknownNameError, match="maple"):
        write_folder_report(tmp_path, main="maple")
    with pytest.raises(UnknownNameError, match="photos"):
        write_folder_report(tmp_path, data=["photos"])


def test_a_report_names_methods_as_tables_and_commands_do(tmp_path: Path) -> None:
    """Entries with a label and classes outside the package too, which are not imported."""
    runs = [
        record("tools", "zero-shot", 0.4, 0.5),
        record("tools", "absent:Gated", 0.6, 0.6, variant="gated", title="Gated CoOp"),
        *(record("tools", "coop", 0.6, 0.6, variant=variant) for variant in ("tuned", "fixed")),
    ]
    put(tmp_path, runs)
    for main in ("absent:Gated", "Gated CoOp (gated)"):
        words = ["report", str(tmp_path), "--main", main, "--methods", "Gated CoOp (gated),coop (tuned)"]
        assert cli(words) == 0
        rows = csv.DictReader((tmp_path / "report/base-to-novel-methods.csv").open(encoding="utf-8-sig"))
        assert {row["Method"] for row in rows} == {"chance", "Gated CoOp (gated)", "coop (tuned)"}
    with pytest.raises(UnknownNameError, match="fixed"):
        write_folder_report(tmp_path, main="coop")


def test_latex_includes_each_figure_that_lies_beside_it(tmp_path: Path) -> None:
    put(tmp_path, all_protocols())
    made = write_folder_report(tmp_path)
    text = (made.html.parent / "report.tex").read_text()
    figures = [path.name for path in made.files if path.suffix == ".pdf"]
    assert figures
    assert sorted(re.findall(r"includegraphics\[[^]]*\]\{(.*?)\}", text)) == sorted(figures)
