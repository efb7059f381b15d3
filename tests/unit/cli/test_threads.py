"""What a command sets in the environment before torch is loaded, and the option --threads."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import dear
from dear.cli.main import main
from dear.threads import prepare
from tests.helpers.server import picture

QUIET = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "0", "KMP_BLOCKTIME": "0"}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, {**QUIET, "DEAR_THREADS": "auto"}),
        ({"GOMP_SPINCOUNT": "9"}, {"GOMP_SPINCOUNT": "9", "DEAR_THREADS": "auto"}),
        ({"OMP_WAIT_POLICY": "ACTIVE"}, {"OMP_WAIT_POLICY": "ACTIVE", "DEAR_THREADS": "auto"}),
        ({"OMP_NUM_THREADS": "2"}, {"OMP_NUM_THREADS": "2", **QUIET}),
        (
            {"THP_MEM_ALLOC_ENABLE": "0", "DEAR_THREADS": "3"},
            {"THP_MEM_ALLOC_ENABLE": "0", "DEAR_THREADS": "3", **QUIET},
        ),
        ({"DEAR_THREADS": "3"}, {"DEAR_THREADS": "3", **QUIET}),
    ],
)
def test_what_the_user_has_set_stays(before: dict[str, str], after: dict[str, str]) -> None:
    environment = dict(before)
    prepare(environment)
    assert environment == {"THP_MEM_ALLOC_ENABLE": "1"} | after


def test_a_program_that_calls_a_command_keeps_its_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*QUIET, "DEAR_THREADS"):
        monkeypatch.delenv(name, raising=False)
    before = dict(os.environ)
    assert main(["--version"]) == 0
    assert dict(os.environ) == before


def in_python(program: str, **environment: str) -> str:
    """What a program prints in a fresh process without variables of threads."""
    names = (*QUIET, "DEAR_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
    clean = {name: value for name, value in os.environ.items() if name not in names} | environment
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=clean, check=True
    )
    return done.stdout + done.stderr


def test_an_import_prepares_a_process_before_torch_is_loaded() -> None:
    show = "import os, sys, dear; print(os.environ.get('OMP_WAIT_POLICY'), os.environ.get('DEAR_THREADS'))"
    assert in_python(show).split() == ["PASSIVE", "auto"]
    assert in_python(show, OMP_WAIT_POLICY="ACTIVE", OMP_NUM_THREADS="2").split() == ["ACTIVE", "None"]
    loaded = f"import sys; sys.modules['torch'] = sys; {show}"
    assert "None None" in in_python(loaded)
    assert "import dear first" in in_python(loaded)
    assert "import dear first" not in in_python(loaded, OMP_WAIT_POLICY="ACTIVE")


@pytest.mark.long
def test_openmp_has_it_when_torch_is_loaded() -> None:
    """It shows its settings when it is loaded."""
    environment = {"PYTHONPATH": str(Path(dear.__file__).parents[1]), "OMP_DISPLAY_ENV": "VERBOSE"}
    command = [sys.executable, "-m", "dear.cli.main", "info", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    printed = done.stdout + done.stderr
    if "OMP_WAIT_POLICY" not in printed:
        pytest.skip("this torch has an OpenMP that does not show its settings")
    assert "OMP_WAIT_POLICY = 'PASSIVE'" in printed


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process that the command line has started; what commands set in it is restored."""
    monkeypatch.setenv("DEAR_THREADS", "auto")
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("asked")
def test_the_option_is_recorded(tmp_path: Path) -> None:
    for path in ("train/red/1.png", "train/blue/2.png", "test/red/3.png", "test/blue/4.png"):
        (tmp_path / "photos" / path).parent.mkdir(parents=True)
        picture(int(path[-5])).save(tmp_path / "photos" / path)
    words = ["run", "few-shot", "--data", str(tmp_path / "photos"), "--model", "tiny", "--device", "cpu"]
    options = ["--methods", "zero-shot", "--shots", "1", "--out", str(tmp_path / "out"), "--threads", "2"]
    assert main([*words, *options]) == 0
    [record] = (tmp_path / "out").glob("*.json")
    assert json.loads(record.read_text())["environment"]["threads"] == 2


def test_a_number_of_threads_that_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    for number in ("0", "many"):
        assert main(["fit", "--data", "mixed-paints", "--out", "b", "--threads", number]) == 2
        assert "threads" in capsys.readouterr().err
