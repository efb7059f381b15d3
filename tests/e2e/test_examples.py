"""The examples run, and stay short; the notebooks run, and are stored with what they show."""

import json
import os
import re
import runpy
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tools.notebooks import run_notebook

FOLDER = Path(__file__).parents[2] / "examples"
NAMES = sorted(path.name for path in FOLDER.glob("*.py"))
SAYS = {
    "add_a_method.py": "add_a_method:Adapter: base 0.",
    "classify_onnx.py": "classifier.onnx photo.jpg",
    "large_folder.py": "32 images, by class:",
    "own_folder.py": "accuracy on test images:",
    "read_a_record.py": "harmonic mean",
}
NOTEBOOKS = {
    "adapt_and_explain.ipynb": "accuracy on test images:",
    "discover_roles.ipynb": "accuracy after one epoch",
    "frame_to_server.ipynb": "the same answers as above: True",
}


def test_all_are_here() -> None:
    assert {*SAYS} <= {*NAMES}
    assert {*NOTEBOOKS} == {path.name for path in FOLDER.glob("*.ipynb")}


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_an_example_runs(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("dear.adapters.leftout.ENOUGH", 1)  # an image is left out once
    path = FOLDER / name
    assert len(path.read_text(encoding="utf-8").splitlines()) < 130
    monkeypatch.setenv("DEAR_CACHE", str(tmp_path))
    monkeypatch.setenv("RAY_ADDRESS", "local")  # another test's cluster may be up
    monkeypatch.chdir(tmp_path)  # one of them writes a picture where it is run
    monkeypatch.setattr(sys, "argv", [str(path)])
    monkeypatch.syspath_prepend(str(FOLDER))  # as for a script that is run
    runpy.run_path(str(path), run_name="__main__")
    assert SAYS.get(name, "") in capsys.readouterr().out


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_is_stored_with_what_it_shows(name: str) -> None:
    """By `python -m tools.notebooks`: in order, small, without warnings and folders of a machine."""
    text = (FOLDER / name).read_text(encoding="utf-8")
    code = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == [*range(1, len(code) + 1)]
    for cell in code:
        shows = "print(" in "".join(cell["source"])
        assert bool(cell["outputs"]) or not shows
        assert all(len(json.dumps(output)) < 300_000 for output in cell["outputs"])
    stored = "".join(texts(code))
    assert NOTEBOOKS[name] in stored
    assert not re.search(r"Warning|Traceback|(^|[\s'\"])/[a-z]+/|[A-Z]:\\\\", stored)


def texts(code: Iterable[dict[str, Any]]) -> list[str]:
    """What code cells show as text."""
    outputs = [output for cell in code for output in cell["outputs"]]
    return ["".join(output.get("text") or output["data"].get("text/plain", "")) for output in outputs]


@pytest.mark.long
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_shows_what_is_stored(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Apart from numbers and names that another machine may compute otherwise."""
    if name == "frame_to_server.ipynb":
        for module in ("pandas", "uvicorn"):
            pytest.importorskip(module)
    monkeypatch.setenv("DEAR_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("MPLBACKEND", "agg")
    monkeypatch.setenv("PYTHONPATH", str(FOLDER.parent / "src"), prepend=os.pathsep)
    monkeypatch.chdir(tmp_path)
    stored = json.loads((FOLDER / name).read_text(encoding="utf-8"))
    fresh = run_notebook(stored, name)
    for before, now in zip(stored["cells"], fresh["cells"], strict=True):
        for old, new in zip(before.get("outputs", ()), now.get("outputs", ()), strict=True):
            assert old["output_type"] == new["output_type"]
            assert set(old.get("data", ())) == set(new.get("data", ()))
    assert NOTEBOOKS[name] in "".join(texts(cell for cell in fresh["cells"] if "outputs" in cell))
