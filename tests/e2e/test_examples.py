"""The examples run, and stay short; the notebooks run, and are stored without results."""

import json
import runpy
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "examples"
NAMES = sorted(path.name for path in FOLDER.glob("*.py"))
SAYS = {
    "add_a_method.py": "add_a_method:Adapter: base 0.",
    "discover_roles.py": "core attributes:",
    "own_folder.py": "accuracy on test images:",
    "read_a_record.py": "harmonic mean",
}
NOTEBOOKS = {
    "adapt_and_explain.ipynb": "accuracy on test images:",
    "discover_roles.ipynb": "accuracy after one epoch",
}


def test_all_are_here() -> None:
    assert {*SAYS} <= {*NAMES}
    assert {*NOTEBOOKS} == {path.name for path in FOLDER.glob("*.ipynb")}


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_an_example_runs(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = FOLDER / name
    assert len(path.read_text(encoding="utf-8").splitlines()) < 75
    monkeypatch.setenv("DEAR_CACHE", str(tmp_path))
    monkeypatch.chdir(tmp_path)  # one of them writes a picture where it is run
    monkeypatch.setattr(sys, "argv", [str(path)])
    monkeypatch.syspath_prepend(str(FOLDER))  # as for a script that is run
    runpy.run_path(str(path), run_name="__main__")
    assert SAYS.get(name, "") in capsys.readouterr().out


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_is_stored_without_results(name: str) -> None:
    for cell in json.loads((FOLDER / name).read_text(encoding="utf-8"))["cells"]:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None


@pytest.mark.long
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_runs(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DEAR_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("MPLBACKEND", "agg")
    monkeypatch.chdir(tmp_path)
    cells = json.loads((FOLDER / name).read_text(encoding="utf-8"))["cells"]
    names: dict[str, object] = {"__name__": "__main__"}
    for number, cell in enumerate(cells):
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), f"{name}, cell {number}", "exec"), names)
    assert NOTEBOOKS[name] in capsys.readouterr().out
