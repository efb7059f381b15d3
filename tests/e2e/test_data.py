"""Data sets through the command line: the same images as a folder, a table and a zip; bad input."""

import json
import os
import shutil
import warnings
import zipfile
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from dear.cli import data
from dear.cli.main import main
from tests.e2e.conftest import RUN, SHORT, Ask, Run

CALTECH = Path(__file__).parents[2] / "../shared/data/caltech-101"
CLASSES = ("red", "green", "blue", "sea")


@pytest.fixture(autouse=True)
def _no_benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DEAR_DATA", raising=False)


@pytest.fixture
def photos(tmp_path: Path) -> dict[str, Path]:
    """12 images in four forms with one split: CoOp's layout, train/ and test/, a CSV, a zip."""
    rows: dict[str, list[Any]] = {"train": [], "val": [], "test": []}
    lines = ["path,label,split"]
    for label, name in enumerate(sorted(CLASSES)):
        for number in range(3):
            part = "train" if number < 2 else "test"
            path = f"{part}/{name}/{number}.png"
            (tmp_path / "folder" / path).parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (29, 23), (60 * label, 30 * number, 99)).save(tmp_path / "folder" / path)
            rows[part].append([path, label, name])
            lines.append(f"{path},{name},{part}")
    shutil.copytree(tmp_path / "folder", tmp_path / "coop/images")
    (tmp_path / "coop/split_zhou_Photos.json").write_text(json.dumps(rows))
    shutil.copytree(tmp_path / "folder", tmp_path / "table")
    (tmp_path / "table/list.csv").write_text("\n".join(lines))
    with zipfile.ZipFile(tmp_path / "packed.zip", "w") as file:
        for path in sorted((tmp_path / "folder").rglob("*.png")):
            file.write(path, path.relative_to(tmp_path / "folder").as_posix())
    return {
        "coop": tmp_path / "coop",
        "folder": tmp_path / "folder",
        "table": tmp_path / "table/list.csv",
        "zip": tmp_path / "packed.zip",
    }


def test_the_same_images_in_four_forms_give_the_same_run(
    photos: dict[str, Path], small: Path, tmp_path: Path, run: Run
) -> None:
    results = []
    for form, path in photos.items():
        out = tmp_path / "out" / form
        words = [*RUN, "--methods", "dear", *SHORT, "--data", str(path), "--roles", str(small)]
        run([*words, "--dataset.sampling", "coop", "--out", str(out)])
        (record,) = (json.loads(file.read_text()) for file in out.glob("*.json"))
        assert record["fewshot"]["sampling"] == "coop"
        assert len(record["fewshot"]["files"]) == 4
        results.append((record["results"], record["train"]["epochs"][-1]["loss"]))
    assert results[1:] == results[:1] * 3


def pick(data: Path, shots: int = 1, method: str = "coop") -> list[str]:
    """A command that draws the few-shot images."""
    words = ["run", "few-shot", "--model", "tiny", "--methods", method, "--shots", str(shots)]
    return [*words, "--out", str(data.parent / "never"), "--data", str(data)]


def test_check(photos: dict[str, Path], ask: Ask) -> None:
    found = ask(["data", "check", str(photos["zip"])])
    assert (found["ok"], found["counts"], found["classes"]) == (True, {"train": 8, "test": 4}, 4)
    assert found["per_class"] == {"train": [2, 2], "test": [1, 1]}
    both = ask(["data", "check", str(photos["zip"]), str(photos["folder"])])
    assert both["counts"] == {"train": 16, "test": 8}
    (photos["coop"] / "images/train/red/0.png").unlink()
    found = ask(["data", "check", str(photos["coop"]), "--no-decode"], 1)
    assert found["missing"] == ["train/red/0.png"]


def test_list_and_get(tmp_path: Path, ask: Ask, run: Run) -> None:
    listed = ask(["data", "list", "--root", str(tmp_path)])
    assert len(listed["benchmarks"]) == 15
    assert {row["there"] for row in listed["benchmarks"]} == {False}
    got = ask(["data", "get", "imagenet-r", "--root", str(tmp_path)])
    assert (got["name"], got["why"]) == ("ImageNetR", "torchvision does not download it")
    assert "'foods'" in run(["data", "get", "foods", "--root", str(tmp_path)], 2)[1]
    assert "--root" in run(["data", "get", "dtd"], 2)[1]


@pytest.mark.skipif(not CALTECH.is_dir(), reason="the shared Caltech-101 subset is not here")
def test_caltech_is_told_from_the_standard_split(ask: Ask) -> None:
    found = ask(["data", "check", str(CALTECH), "--no-decode"])
    assert found["counts"] == {"train": 1600, "val": 200, "test": 600}
    assert (found["standard"], found["ok"], found["other_names"], found["missing"]) == (False, True, [], [])


def test_names_of_files_steer_no_terminal(
    photos: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = photos["folder"]
    (folder / "train/red/\x1b]0;owned\x07\x9b31m\nnote.png").write_text("words")
    (folder / "train/red/\x1b[2J.txt").write_text("words")
    check = ["data", "check", str(folder)]
    for words in (check, [*check, "--json"], [*pick(folder), "--dataset.broken", "skip", "--dry-run"]):
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            main(words)
        said = "".join(capsys.readouterr())
        assert "owned" in said
        assert not {*said} & {"\x1b", "\x07", "\x9b"}


class TestFaults:
    """`data check` names every fault at once; whoever would use the data gets the first."""

    def faults(self, place: Path, told: list[str], run: Run, ask: Ask) -> dict[str, Any]:
        """What the check finds; each of its faults has its words."""
        first = run(pick(place), 2)[1]
        found: dict[str, Any] = ask(["data", "check", str(place)], 1)
        assert found["ok"] is False
        assert found["faults"][0] in first
        assert "NOT OK" in run(["data", "check", str(place)], 1)[0]
        lines = found["faults"]
        assert [words if words in line else line for words, line in zip(told, lines, strict=True)] == told
        return found

    def test_of_a_table(
        self, photos: dict[str, Path], run: Run, ask: Ask, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """All are in JSON, and the texts of two on the screen."""
        table = photos["table"].with_suffix(".jsonl")
        rows = [line.split(",") for line in photos["table"].read_text().splitlines()[1:]]
        rows += [["train/red/9.png", "red", "later"], ["../x.png", "red", "test"], ["", "red", "test"]]
        rows += [["./train//red/0.png", "red", "test"], ["train/red/9.png", "red", "train"]]
        made = [json.dumps(dict(zip(("path", "label", "split"), row, strict=True))) for row in rows]
        table.write_text("\n".join(["", *made, "[1,", '{"path": "y", "label": true}']))
        told = ["not train, val or test", "leads out", "needs path, label", "already in"]
        found = self.faults(table, [*told, "it is not readable JSON", "the label True"], run, ask)
        assert found["missing"] == ["train/red/9.png"]
        assert found["counts"] == {"train": 9, "test": 4}
        monkeypatch.setattr(data, "MOST_LINES", 2)
        assert "4 more (--json has all)" in run(["data", "check", str(table)], 1)[0]

    def test_of_a_split_list(self, photos: dict[str, Path], run: Run, ask: Ask) -> None:
        file = photos["coop"] / "split_zhou_Photos.json"
        rows = json.loads(file.read_text())
        rows["test"] += [rows["train"][0], ["/x.png", 0, "blue"], ["y.png", True, "green"], "z.png"]
        file.write_text(json.dumps(rows))
        (photos["coop"] / "images" / rows["train"][1][0]).write_text("words")
        told = ["test[5]: the path '/x.png' leads out", "test[6]", "test[7]", "is in both train and test"]
        assert [*self.faults(photos["coop"], told, run, ask)["broken"]] == [rows["train"][1][0]]

    def test_of_a_folder(self, photos: dict[str, Path], run: Run, ask: Ask) -> None:
        folder = photos["folder"]
        for name in ("train/Red", "train/empty", "test/foreign", "test/strange"):
            (folder / name).mkdir()
        (folder / "train/red/0.png").write_text("words")
        for name in ("Red", "empty"):
            (folder / "train" / name / "words.txt").write_text("words")
        told = ["foreign is a class that", "strange is a class that"]
        told += ["'Red' has no images", "'empty' has no images", "the same name"]
        assert [*self.faults(folder, told, run, ask)["broken"]] == ["train/red/0.png"]


def test_an_error_before_the_work_stands_alone(photos: dict[str, Path], tmp_path: Path, run: Run) -> None:
    """Though the data set has a note: that its images have been split."""
    shutil.copytree(photos["folder"] / "train", unsplit := tmp_path / "unsplit")
    few_shot = f"run few-shot --data {unsplit} --model tiny --out {tmp_path}/out"
    for asked in (
        f"{few_shot} --methods coop --shots 99",
        f"fit --method coop --data {unsplit} --model tiny --out {tmp_path}/out --coop.tokens 77",
        f"roles ablate --data {unsplit} --model tiny --heads 99",
    ):
        assert run(asked.split(), 2)[1].count("\n") == 1
    asked = [*few_shot.split(), *["--methods", "zero-shot", "--shots", "1", "--dry-run"]]
    assert "the data has no split" not in run(asked)[1]  # which asks for nothing
    assert run([*asked, "--verbose"])[1].startswith("dear: note: unsplit: the data has no split")


CAFE, GREEN = os.fsdecode(b"caf\xe9.png"), os.fsdecode(b"gr\xfcn")
YEAR_2300 = 10_413_792_000


@pytest.mark.skipif(os.name == "nt", reason="names are UTF-16 there")
def test_names_and_dates_that_few_formats_can_hold(tmp_path: Path, run: Run) -> None:
    images, bundle = tmp_path / "images", tmp_path / "bundle"
    for part in ("train", "test"):
        for shade, name in ((200, "red"), (60, GREEN)):
            folder = images / part / name
            folder.mkdir(parents=True)
            red = shade if part == "train" else 260 - shade  # so that images are misclassified
            for number, file in enumerate((CAFE, "dated.png")):
                color = (red, 10 * number + (part == "test"), 255 - red)  # no copies
                Image.new("RGB", (40, 40), color).save(folder / file)
            os.utime(folder / "dated.png", (YEAR_2300, YEAR_2300))
    fit = ["fit", "--data", str(images), "--model", "tiny", "--method", "zero-shot", "--out", str(bundle)]

    # A class's name is written into bundles and records: it must be text.
    out, _ = run(["data", "check", str(images), "--json"], 1)
    assert any("is not in UTF-8. Rename it." in fault for fault in json.loads(out)["faults"])
    assert r"'gr\udcfcn' is not in UTF-8" in run(fit, 2)[1]
    assert not bundle.exists()

    # Any other name is only a path.
    for part in ("train", "test"):
        shutil.move(images / part / GREEN, images / part / "green")
    out, _ = run(["data", "check", str(images), "--json"])
    assert json.loads(out)["faults"] == []
    run([*fit, "--device", "cpu"])
    run(["eval", str(bundle), str(images), "--out", str(tmp_path / "page"), "--device", "cpu"])
    assert "caf?.png" in (tmp_path / "page" / "mistakes.csv").read_text()
    few_shot = f"run few-shot --data {images} --model tiny --shots 1 --device cpu --out {tmp_path}/runs"
    run([*few_shot.split(), "--methods", "zero-shot,gda", "--gda.views", "2"])
    out, _ = run(["report", str(tmp_path / "runs")])
    assert "2 records." in out
    shutil.move(images / "test", images / GREEN)
    out, _ = run(["predict", str(bundle), str(images), "--device", "cpu", "--json"])
    predicted = {Path(row["image"]).relative_to(images) for row in json.loads(out)["predictions"]}
    assert predicted == {path.relative_to(images) for path in images.rglob("*.png")}
    assert len(predicted) == 8
