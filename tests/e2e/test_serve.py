"""The requests of docs/use.md, run as written against `dear serve` and a bundle on the tiny CLIP."""

import os
import re
import shutil
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from shlex import split

import pytest
import torch
from PIL import Image

import dear
from dear.cli.main import main
from dear.data.world.tasks import load_task
from tests.documented import blocks

PAGE = "docs/use.md"
[START] = (block for block in blocks(PAGE, "sh") if block.startswith("dear serve"))
[REQUESTS] = (block for block in blocks(PAGE, "sh") if block.startswith("curl"))
[PYTHON] = (block for block in blocks(PAGE, "python") if "urllib" in block)
ADDRESS = "http://127.0.0.1:7860"
TOKEN = "secret"
CURL = shutil.which("curl")
pytest.importorskip("uvicorn", reason="the extra `app` is not installed")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the page names: a bundle, an index and an image."""
    place, task = tmp_path_factory.mktemp("serve"), load_task("mixed-paints")
    (place / "photos").mkdir()
    for number, pixels in enumerate(task.train.load(torch.arange(3))):
        Image.fromarray(pixels.permute(1, 2, 0).numpy()).save(place / f"photos/{number}.png")
    for number, name in enumerate(("cup.jpg", "tree.jpg")):
        shutil.copy(place / f"photos/{number}.png", place / name)  # told by its content, not by its name
    options = dear.TrainOptions(epochs=1, warmup_epochs=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dear.fit("mixed-paints", place / "DIR", shots=2, train=options)
    assert (
        main(["index", "build", str(place / "DIR"), str(place / "photos"), "--out", f"{place}/photos.index"])
        == 0
    )
    return place


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    """The page's first command, on any free port and with a token; the server's address."""
    program = "import sys; from dear.cli.main import main; sys.exit(main())"
    words = [*split(START)[1:], "--port", "0"]
    server = subprocess.Popen(
        [sys.executable, "-c", program, *words],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(Path(dear.__file__).parents[1]), "DEAR_TOKEN": TOKEN},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert server.stderr is not None
    said = ""
    while not (found := re.search(r"serving DIR at (http://127\.0\.0\.1:\d+)/\?token=", said)):
        line = server.stderr.readline()
        assert line, f"the server ended: {said}"
        said += line
    yield found[1]
    server.send_signal(signal.SIGINT)
    server.stderr.read()
    assert server.wait(30) == 0


@pytest.mark.skipif(CURL is None, reason="there is no curl")
def test_the_requests_with_curl(folder: Path, address: str) -> None:
    (folder / ".curlrc").write_text("fail-with-body\nsilent\nno-progress-meter\n")  # a refusal is an error
    assert REQUESTS.count(ADDRESS) == 4
    done = subprocess.run(
        ["bash", "-ec", REQUESTS.replace(ADDRESS, address)],
        cwd=folder,
        env=os.environ | {"HOME": str(folder), "CURL_HOME": str(folder), "DEAR_TOKEN": TOKEN},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith('{"top":[{"name":')
    assert done.stdout.count('{"results":[{"top":[{"name":') == 1
    assert '{"neighbours":[{"path":' in done.stdout
    with Image.open(folder / "look.png") as look:
        assert look.format == "PNG"


def test_the_request_in_python(
    folder: Path, address: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    program = PYTHON.replace(ADDRESS, address).replace("Bearer TOKEN", f"Bearer {TOKEN}")
    exec(compile(program, PAGE, "exec"), {"__name__": "__main__"})
    names = dear.Bundle.from_pretrained(folder / "DIR").classes
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert all(line.startswith(names) for line in lines)
