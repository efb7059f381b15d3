"""The commands and the Python of README, quick start and how-tos run as written, on a folder of pictures.

What a reader would wait for is made smaller: the tiny CLIP, one epoch, two images a class.
"""

import json
import shutil
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import dear
from dear.cli.main import main
from dear.data.settings import DataSettings
from dear.world.tasks import load_task
from tests.documented import PAGES, Shown, blocks, commands

pytestmark = pytest.mark.long
GUIDES = (
    "start",
    "your-data",
    "choose",
    "use",
    "serve",
    "own-loop",
    "search",
    "roles",
    "backbones",
    "add-a-method",
)
HOW_TO = [page for page in PAGES if page in ("README.md", *(f"docs/{name}.md" for name in GUIDES))]
NOT_RUN = {
    "--by": "needs photographs with EXIF data: tests/unit/adapters/test_by_group.py",
    "dear serve": "it does not end: tests/e2e/test_serve.py",
    "dear roles assign": "needs the result of another program: tests/e2e/test_roles.py",
    "dear roles compare mine.json": "needs the table of the line above",
    "dear roles discover": "examples/discover_roles.ipynb does it: tests/e2e/test_examples.py",
    "dear export": "takes a minute: tests/e2e/test_bundles.py",
    "classifier.onnx": "needs an export: tests/unit/adapters/test_onnx_predictor.py",
    "{000..009}": "needs ten files: tests/unit/data/sources/test_shards.py",
    "test.parquet": "needs a Parquet file: tests/unit/data/sources/test_shards.py",
    "clip.mp4": "needs the extra video: tests/unit/data/images/test_video.py",
    "hf:": "needs the network",
    "dear fit saved/": "needs the extra datasets",
    "pacs/": "needs folders of domains",
}
"""Commands of the pages that are only checked for validity (tests/checks/test_docs.py), by a part of them."""
NOT_RUN_PYTHON = {
    "discover(": "takes minutes: examples/discover_roles.ipynb does it",
    "urllib": "needs a server: tests/e2e/test_serve.py",
    "OnnxPredictor(": "needs an export: tests/unit/adapters/test_onnx_predictor.py",
    "METHOD = ": "a line of a module",
}
ONE_PROGRAM = "docs/own-loop.md"
"""A page whose blocks of Python belong together."""
QUICK = ("--train.epochs", "1", "--train.warmup-epochs", "0")
MODEL = {"--model": ("tiny",), "--pretrained": (), "--roles": ()}
"""Options of the backbone, and what they are in the tests."""
ADDED = {
    "fit": ("--model", "tiny", *QUICK),
    "run": ("--model", "tiny", "--shots", "2", *QUICK),
}


def is_run(words: str, but: dict[str, str]) -> bool:
    return not any(part in words for part in but)


def programs(page: str) -> list[str]:
    found = blocks(page, "python")
    return ["\n".join(found)] if page == ONE_PROGRAM else found


RUN = {
    page: found
    for page in HOW_TO
    if (found := [o for o in commands(page) if o.words[0] == "dear" and is_run(" ".join(o.words), NOT_RUN)])
}
PYTHON = [
    (page, number)
    for page in HOW_TO
    for number, block in enumerate(programs(page))
    if is_run(block, NOT_RUN_PYTHON)
]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with everything that the pages name: pictures of four classes, two bundles, a picture."""
    place, task = tmp_path_factory.mktemp("inputs"), load_task("street-signs")
    rows = ["path,label"]
    for label, name in enumerate(task.classnames[:4]):
        (place / "photos" / name).mkdir(parents=True)
        chosen = (task.train.labels == label).nonzero().flatten()[:4]
        for number, picture in enumerate(task.train.load(chosen)):
            file = place / "photos" / name / f"{number}.png"
            Image.fromarray(picture.permute(1, 2, 0).numpy()).save(file)
            rows.append(f"{file.relative_to(place)},{name}")
    shutil.copytree(place / "photos", place / "folder")
    for photo in sorted((place / "photos").glob("*/*.png")):  # of other bytes
        other = place / "more-photos" / photo.relative_to(place / "photos")
        other.parent.mkdir(parents=True, exist_ok=True)
        Image.open(photo).save(other, compress_level=1)
    for name in ("photo.jpg", "cup.jpg"):
        Image.open(file).save(place / name, quality=95)
    (place / "list.csv").write_text("\n".join(rows))
    shutil.make_archive(str(place / "photos"), "zip", place / "photos")
    for name, packed in (("new", "photos"), ("wds/train/000", "photos"), ("wds/test/000", "more-photos")):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.make_archive(str(place / name), "tar", place / packed)
    (place / "names.json").write_text(json.dumps({name: f"sign {name}" for name in task.classnames[:4]}))
    options: dict[str, Any] = {"model": "tiny", "method": "dear+", "dataset": DataSettings(test_share=0.3)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DEAR_CACHE", str(place / "cache"))
        dear.fit(place / "photos", place / "my-classifier", **options)
    shutil.copytree(place / "my-classifier", place / "better")
    return place


@pytest.fixture
def work(inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the inputs and of their features, in which the test runs. An image is left out once."""
    monkeypatch.setattr("dear.adapters.leftout.ENOUGH", 1)
    work = tmp_path / "work"
    shutil.copytree(inputs, work)
    monkeypatch.chdir(work)
    monkeypatch.setenv("DEAR_CACHE", str(work / "cache"))
    return work


def smaller(one: Shown) -> list[str]:
    """The command's words with the tiny CLIP in place of another, and little training."""
    words, kept = iter(one.words[1:]), []
    replaced = {*MODEL, *ADDED.get(one.words[1], ())}
    for word in words:
        if word.startswith("--") and word in replaced:
            next(words)
        else:
            kept.append(word)
    heads = ("--model", "tiny") if "--features" in kept else ()  # else the model is that of a bundle
    return [*kept, *ADDED.get(kept[0], ()), *heads]


def test_pages_have_commands_that_run() -> None:
    assert {"README.md", "docs/start.md", "docs/use.md", "docs/search.md"} <= {*RUN}
    assert sum(len(found) for found in RUN.values()) >= 14
    assert {"docs/start.md", "docs/use.md", "docs/search.md"} <= {page for page, _ in PYTHON}


@pytest.mark.parametrize("page", RUN)
def test_the_commands_of_a_page_run(page: str, work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for one in RUN[page]:
        if one.words[1] == "fit":
            shutil.rmtree(work / one.words[one.words.index("--out") + 1], ignore_errors=True)
        if list(one.words[1:3]) == ["index", "build"]:  # the page shows several ways to make it
            shutil.rmtree(work / "photos.index", ignore_errors=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            code = main(smaller(one))
        assert code == 0, f"{one}\n{capsys.readouterr().err}"
        if "--out" in one.words:
            assert (work / one.words[one.words.index("--out") + 1]).exists(), one


@pytest.mark.parametrize(("page", "number"), PYTHON)
def test_the_python_of_a_page_runs(
    page: str, number: int, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    block = programs(page)[number]
    if "dear.fit(" in block:
        shutil.rmtree(work / "my-classifier")
    options: dict[str, Any] = {"model": "tiny", "train": {"epochs": 1, "warmup_epochs": 0}}
    monkeypatch.setattr(dear, "fit", partial(dear.fit, **options))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(compile(block, f"{page}, block {number}", "exec"), {"__name__": "__main__"})
