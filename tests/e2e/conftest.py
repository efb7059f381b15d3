"""A small data set, the small CLIP with its role table, and a folder for the results."""

import json
import os
import re
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

import dear
from dear.adapters.bundle import Bundle
from dear.backbone.clip import Clip
from dear.backbone.loading.load import load_clip
from dear.cli.main import main
from dear.methods.registry import METHODS
from dear.world.tasks import load_task
from tests.helpers.methods import role_table

Start = Callable[..., tuple[subprocess.Popen[str], str]]
Run = Callable[..., tuple[str, str]]
Ask = Callable[..., Any]
RUN = ["run", "base-to-novel"]
SHORT = ["--shots", "2", "--train.epochs", "2", "--dear.first", "8"]


def write_signs(folder: Path, *, train: int, test: int) -> Path:
    """Pictures of three classes of a world task as a folder, so many of each to train and to test on."""
    task = load_task("street-signs")
    for part, images, count in (("train", task.train, train), ("test", task.test, test)):
        for label in (0, 7, 13):
            class_folder = folder / part / task.classnames[label].replace(" ", "_")
            class_folder.mkdir(parents=True)
            indices = (images.labels == label).nonzero().flatten()[:count]
            for number, picture in enumerate(images.load(indices)):
                Image.fromarray(picture.permute(1, 2, 0).numpy()).save(class_folder / f"{number}.png")
    return folder


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """``run(words, code=0)``: what a command that ends with this code prints to stdout and stderr.

    A refusal is one line, the last.
    """

    def run(words: list[str], code: int = 0) -> tuple[str, str]:
        capsys.readouterr()  # of the fixtures
        found, printed = main(words), capsys.readouterr()
        assert found == code, printed.err
        if code == 2:
            assert printed.out == "" or json.loads(printed.out).keys() == {"error", "kind"}
            *before, line = printed.err.splitlines()
            assert line.startswith("dear: error: ")
            assert not [line for line in before if line.startswith(("dear: error", "Traceback"))]
        return printed.out, printed.err

    return run


@pytest.fixture
def ask(run: Run) -> Ask:
    """``ask(words, code=0)``: the JSON that a command prints with --json."""
    return lambda words, code=0: json.loads(run([*words, "--json"], code)[0])


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """A data set in CoOp's layout: 4 classes, 2 images each to train on and 1 to test on, in one plain
    color each.
    """
    folder = tmp_path / "photos"
    rows: dict[str, list[Any]] = {"train": [], "val": [], "test": []}
    for label, name in enumerate(("red", "green", "blue", "sea")):
        for number in range(3):
            path = f"{name}/{number}.png"
            (folder / "images" / name).mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (29, 23), (60 * label, 30 * number, 99)).save(folder / "images" / path)
            rows["train" if number < 2 else "test"].append([path, label, name])
    (folder / "split_zhou_Photos.json").write_text(json.dumps(rows))
    return folder


@pytest.fixture
def small(small_clip: Clip, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The small CLIP in place of whatever the command loads; returns the file of its role table."""
    monkeypatch.setattr("dear.evaluation.session.load_clip", lambda *_args, **_options: small_clip)
    path = tmp_path / "roles.json"
    role_table(small_clip).save(path)
    return path


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the page names: a bundle, an index and an image."""
    place, task = tmp_path_factory.mktemp("serve"), load_task("mixed-paints")
    (place / "photos").mkdir()
    for number, pixels in enumerate(task.train.load(torch.arange(3))):
        Image.fromarray(pixels.permute(1, 2, 0).numpy()).save(place / f"photos/{number}.png")
    for number, name in enumerate(("cup.jpg", "tree.jpg")):
        shutil.copy(place / f"photos/{number}.png", place / name)  # told by its content, not by its name
    bundle, options = place / "my-classifier", {"method": "dear+", "settings": {"views": 0}}
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("ignore")
        patch.setattr("dear.adapters.leftout.ENOUGH", 1)  # each image is left out once
        dear.fit("mixed-paints", bundle, shots=2, review=False, **options)
    words = ["index", "build", bundle, place / "photos", "--out", place / "photos.index"]
    assert main([*map(str, words)]) == 0
    return place


@pytest.fixture(scope="session")
def start_server(served: Path) -> Iterator[Start]:
    """``start_server(*options, token=None)``: docs/serve.md's server on a free port, and its address."""
    processes = []

    def start(*options: str, token: str | None = None) -> tuple[subprocess.Popen[str], str]:
        source = str(Path(dear.__file__).parents[1])
        environment = os.environ | {"PYTHONPATH": source, "DEAR_TOKEN": token or ""}
        program = "import sys; from dear.cli.main import main; sys.exit(main())"
        command = ["serve", "my-classifier", "--index", "photos.index", "--port", "0"]
        words = [sys.executable, "-c", program, *command, *options]
        server = subprocess.Popen(words, cwd=served, env=environment, stderr=subprocess.PIPE, text=True)
        processes.append(server)
        printed = ""
        while not (match := re.search(r"serving my-classifier at (http://127\.0\.0\.1:\d+)/", printed)):
            line = server.stderr.readline()
            assert line, f"the server ended: {printed}"
            printed += line
        return server, match[1]

    yield start
    for server in processes:
        if server.poll() is None:
            server.kill()
        server.communicate()


@pytest.fixture(scope="module")
def cup(served: Path) -> bytes:
    return (served / "cup.jpg").read_bytes()


@pytest.fixture(scope="module")
def untrained_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle that has learned nothing, with an image beside it."""
    made = Bundle(
        method="zero-shot", settings=METHODS["zero-shot"].settings(), model="tiny", pretrained=None,
        weights=load_clip("tiny").identity, roles=None, classes=("red circle", "blue square"),
        templates=("a photo of a {}.",), tensors={},
    )  # fmt: skip
    folder = made.save_pretrained(tmp_path_factory.mktemp("made") / "bundle")
    Image.new("RGB", (64, 64), "red").save(folder.parent / "red.png")
    return folder
