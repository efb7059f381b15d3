"""No library that an export loads reports on the user."""

import os
import subprocess
import sys
from pathlib import Path

from dear.adapters.export import export
from dear.adapters.predictor import Predictor
from dear.backbone.clip import Clip
from tests.unit.serving.small import small_predictor

RUNTIME = "import os, sys; print(os.environ.get('ORT_DISABLE_TELEMETRY'), file=sys.stderr)"


def test_onnxruntime_is_told_before_it_is_loaded(tmp_path: Path) -> None:
    """It looked up its maker's server in each export, with the path of Python in its report."""
    for name in ("onnx", "onnxscript"):
        (tmp_path / f"{name}.py").touch()
    (tmp_path / "onnxruntime.py").write_text(RUNTIME)
    environment = {key: value for key, value in os.environ.items() if key != "ORT_DISABLE_TELEMETRY"}
    ended = subprocess.run(
        [sys.executable, "-c", "from dear.adapters.export import _require_onnx; _require_onnx()"],
        env=environment | {"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert ended.stderr.split()[-1] == "1"


def test_a_program_has_no_paths_of_this_machine(small_clip: Clip, tmp_path: Path) -> None:
    """Each of its nodes had those of the code that made it, in a file that is made to be handed on."""
    predictor = Predictor(small_predictor(small_clip).bundle, clip=small_clip)
    export(predictor, tmp_path / "m.pt2", form="torch-export")
    content = (tmp_path / "m.pt2").read_bytes()
    assert str(Path(__file__).parents[3]).encode() not in content
    assert b"site-packages" not in content
