"""Commands given in a stranger's folder: nothing in it is loaded, run or read."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import dear
from tests.unit.data.photos import COUNTS, class_folders

pytestmark = pytest.mark.skipif(os.name == "nt", reason="libraries look for others beside themselves there")
COMMAND = """
import sys
from dear.cli.main import main
if __name__ == "__main__":
    sys.exit(main())
"""
LATE = 600  # seconds: a command that waits would do so for ever
SOURCE = Path(dear.__file__).parents[1]


def command(
    folder: Path, *words: str, code: str = COMMAND, **environment: str
) -> subprocess.CompletedProcess[str]:
    """A command, given in the folder, as its script begins: the first of Python's folders is the script's."""
    script = folder.parent / "command.py"
    script.write_text(code)
    environment |= {"DEAR_CACHE": str(folder.parent / "cache"), "MPLCONFIGDIR": str(folder.parent / "mpl")}
    return subprocess.run(
        [sys.executable, script, *words], cwd=folder, capture_output=True, text=True,
        stdin=subprocess.DEVNULL, timeout=LATE, env=os.environ | {"PYTHONPATH": str(SOURCE)} | environment,
    )  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "theirs").mkdir()
    return tmp_path / "theirs"


LOADED = """
import os, sys
opened = []
def note(event, arguments):
    if event == "open" and isinstance(arguments[0], str) and arguments[0].startswith("matplotlibrc"):
        opened.append(arguments[0])
sys.addaudithook(note)
from dear.libraries import load_elsewhere
load_elsewhere()
here = os.getcwd()
import torch, matplotlib
assert os.getcwd() == here, os.getcwd()
print(opened, open("own").read())
"""


def test_libraries_are_loaded_elsewhere_and_paths_stay(folder: Path) -> None:
    (folder / "own").write_text("mine")
    (folder / "matplotlibrc").write_text("")
    done = command(folder, code=LOADED)
    assert (done.stdout, done.returncode) == ("[] mine\n", 0), done.stderr


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a compiler")
def test_no_library_of_the_folder_runs(folder: Path) -> None:
    """torch's wheels for CUDA have one that looks for libcuda there; this shows it on those only."""
    source = folder / "x.c"
    source.write_text(
        "#include <stdio.h>\n__attribute__((constructor)) static void f(void)"
        '{FILE *o = fopen("ran", "w"); fputs("x", o); fclose(o);}\n'
    )
    subprocess.run(["cc", "-shared", "-fPIC", "-o", folder / "libcuda.so.1", source], check=True)
    done = command(folder, "info")
    assert done.returncode == 0, done.stderr
    assert not [*folder.rglob("ran")]


def test_settings_of_matplotlib_are_not_read(folder: Path) -> None:
    (folder / "runs").mkdir()
    record = Path(__file__).parent / "stored" / "record.json"
    shutil.copy(record, folder / "runs")
    os.mkfifo(folder / "matplotlibrc")  # who reads it waits
    done = command(folder, "report", "runs")
    assert done.returncode == 0, done.stderr
    assert (folder / "runs" / "report").is_dir()


MODULES = ("multiprocessing", "signal", "torch", "dear")


def plant(folder: Path) -> None:
    for module in MODULES:
        (folder / f"{module}.py").write_text("open('ran', 'a').write('x'); raise SystemExit(3)")


SPAWNED = """
import os, multiprocessing
from dear.cli.main import prepare
if __name__ == "__main__":
    prepare(os.environ)
    worker = multiprocessing.get_context("spawn").Process(target=print, args=("worked",))
    worker.start()
    worker.join()
"""


def test_processes_import_nothing_of_the_folder(folder: Path) -> None:
    plant(folder)
    assert command(folder, code=SPAWNED).stdout == "worked\n"
    assert not (folder / "ran").exists()


@pytest.mark.long
@pytest.mark.parametrize("workers", ["--jobs 2", "--cluster local"])
def test_workers_import_nothing_of_the_folder(workers: str, folder: Path) -> None:
    """They find the data there all the same."""
    if "cluster" in workers:
        pytest.importorskip("ray")
    class_folders(folder / "photos", COUNTS)
    plant(folder)
    done = command(
        folder, "run", "few-shot", "--data", "photos", "--methods", "zero-shot", "--seeds", "1,2",
        *workers.split(), "--model", "tiny", "--out", "runs", "--device", "cpu",
        RAY_ENABLE_UV_RUN_RUNTIME_ENV="0",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert len([*(folder / "runs").glob("*.json")]) == 2
    assert not [*folder.rglob("ran")]


def test_whoever_starts_processes_safely_loads_elsewhere(folder: Path) -> None:
    """So do workers, which import the package first."""
    code = "import sys, dear; print([type(finder).__name__ for finder in sys.meta_path][0])"
    assert command(folder, code=code, PYTHONSAFEPATH="1").stdout == "_Elsewhere\n"
