"""Run the notebooks of examples/ and store what they show in them.

    python -m tools.notebooks [NAME...]

Without Jupyter, so that the same notebook gives the same bytes: of each cell what it prints, its last
expression if that is a picture or has a value, and its figures. What goes to stderr (progress, warnings) is
not stored. Each notebook runs in a temporary folder and with a cache of its own.
"""

import ast
import base64
import contextlib
import copy
import io
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "examples"


def run_notebook(notebook: dict[str, Any], name: str) -> dict[str, Any]:
    """A copy of the notebook with the outputs of its code cells, run in the current folder."""
    notebook = copy.deepcopy(notebook)
    names: dict[str, Any] = {"__name__": "__main__"}
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for count, cell in enumerate(code, 1):
        outputs = _run_cell("".join(cell["source"]), f"{name}, cell {count}", names, count)
        cell |= {"execution_count": count, "outputs": outputs}
    return notebook


def _run_cell(source: str, title: str, names: dict[str, Any], count: int) -> list[dict[str, Any]]:
    """The outputs of a cell: what it prints, its figures, or else the value of its last expression."""
    from matplotlib import pyplot

    tree = ast.parse(source)
    last: Any = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(tree, title, "exec"), names)
        value = last and eval(compile(ast.Expression(last.value), title, "eval"), names)
    outputs: list[dict[str, Any]] = []
    if text := printed.getvalue():
        outputs.append({"name": "stdout", "output_type": "stream", "text": text.splitlines(keepends=True)})
    figures = [pyplot.figure(number) for number in pyplot.get_fignums()]
    if value is not None and not figures:
        shown = {"execution_count": count, "metadata": {}, "output_type": "execute_result"}
        outputs.append({"data": _show(value)} | shown)
    for figure in figures:
        figure.savefig(stream := io.BytesIO(), format="png", dpi=80, metadata={"Software": None})
        outputs.append({"data": _png(stream), "metadata": {}, "output_type": "display_data"})
        pyplot.close(figure)
    return outputs


def _show(value: Any) -> dict[str, Any]:
    if hasattr(value, "save"):
        value.save(stream := io.BytesIO(), format="PNG")
        return _png(stream)
    text = value.to_string() if hasattr(value, "to_string") else repr(value)
    return {"text/plain": text.splitlines(keepends=True)}


def _png(stream: io.BytesIO) -> dict[str, str]:
    return {"image/png": base64.b64encode(stream.getvalue()).decode()}


def main(*names: str) -> None:
    """Run some notebooks, or all, and store their outputs."""
    os.environ["MPLBACKEND"] = "agg"
    for name in names or sorted(path.stem for path in FOLDER.glob("*.ipynb")):
        path = FOLDER / f"{name}.ipynb"
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            os.environ["DEAR_CACHE"] = str(Path(folder, "cache"))
            notebook = run_notebook(json.loads(path.read_text(encoding="utf-8")), name)
        path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
