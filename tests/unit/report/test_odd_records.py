"""Records of odd content: counts, long names, names that are not UTF-8 or hold control characters."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from dear.evaluation.predictions import save_predictions
from dear.report.folder import write_folder_report
from tests.unit.report.samples import predictions, record


def dataset(**changes: Any) -> dict[str, Any]:
    return {"dataset": {"name": "tools", "classes": ["ant", "bee"]} | changes}


def test_files_of_long_names(tmp_path: Path) -> None:
    """Two data sets whose names begin alike have figures of their own, of names that any disk takes."""
    for number in range(2):
        run = record(f"tools{number}", "dear", 0.5, 0.6) | dataset(name="n" * 299 + str(number))
        (tmp_path / f"{number}.json").write_text(json.dumps(run))
        save_predictions(tmp_path / f"{number}.npz", {"base": predictions([[0], [2], []])})
    files = [file.name for file in write_folder_report(tmp_path).files]
    assert len({name for name in files if name.startswith("figure-confusion-")}) == 2
    assert max(map(len, files)) < 128


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
    save_predictions(tmp_path / "1.npz", {"base": made})
    texts = {path.name: path.read_text() for path in write_folder_report(tmp_path).files}
    assert {"report.html", "report.md", "report.tex", "figure-gains.svg", "classes.csv"} <= {*texts}
    for name, text in texts.items():
        assert not {*"\x00\x07\x1b\x9b\u202e\u2066"} & {*text}, name
    assert "</script>" not in texts["report.html"]
    assert r"To\x1b[31m\u202eols&lt;/script&gt;" in texts["report.html"]
    assert r"(v\x1b[3m\x07)" in texts["figure-gains.svg"]
