"""The wheel alone in an empty environment: it has all its files, and names all that it needs."""

import os
import re
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from tests.e2e.conftest import write_signs

ROOT = Path(__file__).parents[2]
UV = Path(sys.executable).with_name("uv")

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not UV.exists(), reason="uv, which the Makefile installs, is not in the environment"),
]


def read_index() -> dict[str, str]:
    """pip's package index, for uv, which does not read pip's configuration."""
    words = [sys.executable, "-m", "pip", "config", "get", "global.index-url"]
    found = subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip()
    index = os.environ.get("UV_DEFAULT_INDEX") or os.environ.get("PIP_INDEX_URL") or found
    return {"UV_DEFAULT_INDEX": index} if index else {}


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`dear` of the wheel with the extra `app`, in an environment with nothing else."""
    place = tmp_path_factory.mktemp("wheel")

    def uv(*words: str | Path) -> None:
        subprocess.run([UV, *words], env=os.environ | read_index(), check=True, capture_output=True)

    uv("build", "--wheel", "--out-dir", place, ROOT)
    [wheel] = place.glob("*.whl")
    uv("venv", "--python", sys.executable, place / "env")
    python = place / "env/bin/python"
    pins = ROOT / "requirements/constraints.txt"
    uv("pip", "install", "--python", python, "--constraint", pins, f"dear-vlm[app] @ {wheel.as_uri()}")
    return place / "env/bin/dear"


def test_fit_eval_and_serve(program: Path, tmp_path: Path) -> None:
    alone = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    write_signs(tmp_path / "photos", train=3, test=2)

    def dear(*words: str) -> str:
        done = subprocess.run(
            [program, *words], cwd=tmp_path, env=alone, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "mixed-paints" in dear("data", "list")
    assert "zero-shot" in dear("fit", "photos", "--model", "tiny", "--out", "signs")
    dear("eval", "signs", "photos", "--out", "page")
    assert (tmp_path / "page/evaluation.html").stat().st_size > 10_000
    server = subprocess.Popen(
        [program, "serve", "signs", "--port", "0"], cwd=tmp_path, env=alone, stderr=subprocess.PIPE, text=True
    )
    try:
        address = next(filter(None, (re.search(r"http://127\S+?/", line) for line in server.stderr)))[0]
        with urllib.request.urlopen(address, timeout=60) as page:
            assert b"<title>" in page.read()
    finally:
        server.terminate()
        server.communicate()
