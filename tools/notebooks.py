"""Run the notebooks of examples/ and store what they show in them.

    python -m tools.notebooks [NAME...]

Without Jupyter, so that the same notebook gives the same bytes: of each cell what it prints, its last
expression if that is a picture or has a value, and its figures. What goes to stderr (progress, warnings) is
not stored. Each notebook runs in a temporary folder and with a cache of its own.
"""

import argparse
import ast
import base64
import contextlib
import io
import json
import os
import tempfile
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "examples"


def run_notebook(notebook: dict[str, Any], name: str) -> dict[str, Any]:
    """The notebook with the outputs of its code cells, run in the current folder."""
    names: dict[str, Any] = {"__name__": "__main__"}
    cells, count = [], 0
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            count += 1
            outputs = _outputs("".join(cell["source"]), f"{name}, cell {count}", names, count)
            cell = {**cell, "execution_count": count, "outputs": outputs}
        cells.append(cell)
    return {**notebook, "cells": cells}


def _outputs(source: str, title: str, names: dict[str, Any], count: int) -> list[dict[str, Any]]:
    from matplotlib import pyplot

    tree = ast.parse(source)
    last = tree.body[-1] if tree.body else None
    if isinstance(last, ast.Expr):
        tree.body.pop()
    printed, value = io.StringIO(), None
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, title, "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), title, "eval"), names)
    outputs: list[dict[str, Any]] = []
    if printed.getvalue():
        outputs.append(
            {"name": "stdout", "output_type": "stream", "text": printed.getvalue().splitlines(keepends=True)}
        )
    figures = [pyplot.figure(number) for number in pyplot.get_fignums()]
    if value is not None and not figures:
        data = {"text/plain": _lines(value)} if not hasattr(value, "save") else _picture(value, format="PNG")
        result = {"data": data, "execution_count": count, "metadata": {}, "output_type": "execute_result"}
        outputs.append(result)
    for figure in figures:
        stream = io.BytesIO()
        figure.savefig(stream, format="png", dpi=80, metadata={"Software": None})
        outputs.append({"data": _png(stream.getvalue()), "metadata": {}, "output_type": "display_data"})
        pyplot.close(figure)
    return outputs


def _lines(value: Any) -> list[str]:
    return (value.to_string() if hasattr(value, "to_string") else repr(value)).splitlines(keepends=True)


def _picture(value: Any, **options: Any) -> dict[str, str]:
    stream = io.BytesIO()
    value.save(stream, **options)
    return _png(stream.getvalue())


def _png(content: bytes) -> dict[str, str]:
    return {"image/png": base64.b64encode(content).decode()}


def main() -> None:
    """Run some notebooks, or all, and store their outputs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("names", nargs="*", help="without .ipynb; all if none is given")
    os.environ["MPLBACKEND"] = "agg"
    for name in parser.parse_args().names or sorted(path.stem for path in FOLDER.glob("*.ipynb")):
        path = FOLDER / f"{name}.ipynb"
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            os.environ["DEAR_CACHE"] = str(Path(folder, "cache"))
            notebook = run_notebook(json.loads(path.read_text(encoding="utf-8")), name)
        text = json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"
        path.write_text(text, encoding="utf-8")
        print(f"{path.name}: {len(text):,} bytes")


if __name__ == "__main__":
    main()
