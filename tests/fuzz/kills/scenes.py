"""Commands that write, each with what it finds, and what of its result must not differ after a kill."""

import json
import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.fuzz.kills.launcher import Launcher

CLASSES = ("red", "green", "blue")
PHOTOS = "--data photos --model tiny"
TIMES = ("seconds", "peak_memory", "environment")
RECIPE = """\
protocol: few-shot
out: out
data: [photos]
model: tiny
methods: [zero-shot, coop, dear]
shots: [1]
train: {epochs: 2}
"""


@dataclass(frozen=True)
class Scene:
    """A command, in a folder with photos/ and what ``before`` adds; ``out`` is what it writes.

    Attributes:
        result: What must be the same in the end as without a kill, by the folder that was written.
        keeps: Whether what was there before stays whole until all that is new takes its place.
    """

    words: str
    result: Callable[[Path], Any]
    before: Callable[[Path, Callable[[str], None]], None] = lambda _folder, _run: None
    keeps: bool = False


def photos(folder: Path, *, seed: int = 7, train: int = 3, test: int = 2) -> Path:
    """Noise in three classes, for training and test."""
    drawn = np.random.default_rng(seed)
    for split, count in (("train", train), ("test", test)):
        for name in CLASSES:
            (folder / split / name).mkdir(parents=True, exist_ok=True)
            for number in range(count):
                pixels = drawn.integers(0, 256, (40, 48, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / split / name / f"{number}.png")
    return folder


def contents(out: Path) -> dict[str, bytes]:
    """Every file below a folder, but for locks and a part that a killed process leaves in a cache."""
    files = [path for path in out.rglob("*") if path.is_file()]
    files = [path for path in files if path.name != "lock.sqlite" and ".npy." not in path.name]
    return {path.relative_to(out).as_posix(): path.read_bytes() for path in files}


def records(out: Path) -> dict[str, Any]:
    """Every file: records without what the clock tells, anything else (a part, a lock) as it is."""
    found: dict[str, Any] = {}
    for name, content in contents(out).items():
        found[name] = content.decode(errors="replace")
        if name.endswith(".json"):
            record = json.loads(content)
            epochs = [{k: v for k, v in e.items() if k != "seconds"} for e in record["train"]["epochs"]]
            found[name] = {k: v for k, v in record.items() if k not in TIMES} | {"train": epochs}
    return found


def bundle(out: Path) -> dict[str, Any]:
    """Every file: the configuration without what the clock tells and its hash, and not the card."""
    found: dict[str, Any] = dict(contents(out))
    config = json.loads(found.pop("config.json"))
    config["training"] = {k: v for k, v in config["training"].items() if k not in TIMES}
    del found["README.md"], config["sha256"]
    return found | {"config": config}


def index(out: Path) -> dict[str, Any]:
    """Vectors byte for byte, the catalogue row for row."""
    found: dict[str, Any] = {n: c for n, c in contents(out).items() if "sqlite" not in n}
    with closing(sqlite3.connect(out / "index.sqlite")) as database:
        for table in ("facts", "files"):
            rows = database.execute(f"SELECT * FROM {table}").fetchall()
            found[table] = sorted(map(repr, rows))
    return found


def older_bundle(folder: Path, run: Callable[[str], None]) -> None:
    run(f"fit {PHOTOS} --out out --method coop --train.epochs 2 --device cpu")
    del folder


def with_bundle(_folder: Path, run: Callable[[str], None]) -> None:
    run(f"fit {PHOTOS} --out bundle --method dear --train.epochs 2 --device cpu")


def older_index(folder: Path, run: Callable[[str], None]) -> None:
    """An index of which five of fifteen files have gone since, one has changed and one is new."""
    with_bundle(folder, run)
    run("index build bundle photos --out out --device cpu")
    some = sorted((folder / "photos").rglob("*.png"))
    for path in some[:5]:
        path.unlink()
    Image.new("RGB", (48, 40), (9, 99, 199)).save(some[5])
    Image.new("RGB", (48, 40), (199, 9, 99)).save(folder / "photos" / "new.png")
    for path in (some[5], folder / "photos" / "new.png"):
        os.utime(path, (10**9, 10**9))


def some_records(_folder: Path, run: Callable[[str], None]) -> None:
    run(f"run base-to-novel {PHOTOS} --methods zero-shot --shots 1 --out records --device cpu")


def older_report(folder: Path, run: Callable[[str], None]) -> None:
    some_records(folder, run)
    run("report records --out out --title Older")
    few = f"run few-shot {PHOTOS} --methods zero-shot,coop --shots 1 --train.epochs 2 --out records"
    run(f"{few} --device cpu")


RUN = f"run base-to-novel {PHOTOS} --methods dear --shots 1 --train.epochs 3 --out out --device cpu"
FIT = f"fit {PHOTOS} --method dear --train.epochs 2 --out out --overwrite --device cpu"
INDEX = "index build bundle photos --out out --device cpu"
SCENES = {
    "run": Scene(RUN, records),
    "recipe": Scene("run recipe recipe.yaml --device cpu", records),
    "fit": Scene(FIT, bundle),
    "fit into a folder": Scene(FIT, bundle, lambda folder, _run: (folder / "out").mkdir()),
    "fit again": Scene(FIT, bundle, older_bundle, keeps=True),
    "index": Scene(INDEX, index, with_bundle),
    "index again": Scene(INDEX, index, older_index),
    "cache": Scene("data cache photos --dataset.cache out", contents),
    "report": Scene("report records --out out", contents, some_records),
    "report again": Scene("report records --out out", contents, older_report, keeps=True),
}


WRITERS = {
    "run with val": f"run few-shot {PHOTOS} --methods coop --shots 1 --train.epochs 2 --out out",
    "view cache": f"{RUN} --train.view-cache 1 --train.view-seed 1 --dataset.cache caches",
    "decode cache": f"{RUN} --dataset.decode-cache --dataset.cache caches",
    "export": "export bundle --out out/model.pt2 --format torch-export",
    "onnx": "export bundle --out out/model.onnx",
    "roles": "roles show roles.json --out out/roles.json --html out/roles.html",
    "page": "roles show roles.json --html out/roles.html",
    "pick": "data pick photos --out out/pick.json --shots 1",
    "sheet": "index query index photos/test/red/0.png --sheet out/sheet.png",
}
"""Other commands that write, in a folder with photos/, a bundle, an index of it, a role table, and out/."""


def all_that_is_read(folder: Path, run: Callable[[str], None]) -> None:
    with_bundle(folder, run)
    run("index build bundle photos --out index --device cpu")
    run("roles show discovered --out roles.json")
    (folder / "out").mkdir()


BRIEF = ("run", "report again")
"""The scenes of `make test`; `make test-long` has the others, `make fuzz` all of them."""
NAMES = [pytest.param(name, marks=() if name in BRIEF else pytest.mark.long) for name in SCENES]


class Staged:
    """A scene on a stage: a folder ``work`` with what its command finds, which can be put back to that.

    Attributes:
        old: What the command's folder held before, of a scene that keeps it; else None.
    """

    def __init__(self, name: str, launcher: Launcher, folder: Path) -> None:
        self.scene, self.launcher = SCENES[name], launcher
        self.words, self.work, self.kept = self.scene.words.split(), folder / "work", folder / "kept"
        self.out = self.work / "out"
        self.work.mkdir(parents=True)
        photos(self.work / "photos")
        (self.work / "recipe.yaml").write_text(RECIPE)
        self.scene.before(self.work, self.make)
        shutil.copytree(self.work, self.kept)
        self.old = self.result() if self.scene.keeps else None

    def make(self, words: str) -> None:
        """Run a command, which must end well."""
        done = self.launcher.run(words.split(), self.work)
        assert done.code == 0, done.said

    def result(self) -> Any:
        """What there is of the command's result."""
        return self.scene.result(self.out)

    def finished(self) -> Any:
        """The same, without the checkpoints that a killed fit leaves for its next run."""
        files = self.result()
        return {name: content for name, content in files.items() if not name.startswith("unfinished/")}

    def again(self) -> Any:
        """What the command leaves in the end; it must end well."""
        self.make(self.scene.words)
        return self.result()

    def reset(self) -> None:
        """Put everything back to where it was before the command, with the times of the files."""
        shutil.rmtree(self.work)
        shutil.copytree(self.kept, self.work)
