"""Data sets through the command line: the same images as a folder, a table and a zip; bad input."""

import json
import shutil
import warnings
import zipfile
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from dear.cli import data
from dear.cli.main import main
from tests.e2e.conftest import RUN, SHORT

CALTECH = Path(__file__).parents[2] / "../shared/data/caltech-101"
CLASSES = ("red", "green", "blue", "sea")


@pytest.fixture(autouse=True)
def _caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEAR_CACHE", str(tmp_path / "cache"))
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


def run(words: list[str], capsys: pytest.CaptureFixture[str], expected: int = 0) -> Any:
    """What a command prints with --json."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        code = main([*words, "--json"])
    printed = capsys.readouterr()
    assert code == expected, printed.err
    return json.loads(printed.out)


def refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The one line of a command that must end with code 2."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert main(words) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    return printed.err


def test_the_same_images_in_four_forms_give_the_same_run(
    photos: dict[str, Path], small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = []
    for form, path in photos.items():
        out = tmp_path / "out" / form
        words = [*RUN, "--methods", "dear", *SHORT, "--data", str(path), "--roles", str(small)]
        run([*words, "--dataset.sampling", "coop", "--out", str(out)], capsys)
        (record,) = (json.loads(file.read_text()) for file in out.glob("*.json"))
        assert record["fewshot"]["sampling"] == "coop"
        assert len(record["fewshot"]["files"]) == 4
        results.append((record["results"], record["train"]["epochs"][-1]["loss"]))
    assert results[1:] == results[:1] * 3


def pick(data: Path, shots: int = 1, method: str = "coop") -> list[str]:
    """A command that draws the few-shot images."""
    words = ["run", "few-shot", "--model", "tiny", "--methods", method, "--shots", str(shots)]
    return [*words, "--out", str(data.parent / "never"), "--data", str(data)]


def test_check(photos: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    found = run(["data", "check", str(photos["zip"])], capsys)
    assert (found["ok"], found["counts"], found["classes"]) == (True, {"train": 8, "test": 4}, 4)
    assert found["per_class"] == {"train": [2, 2], "test": [1, 1]}
    both = run(["data", "check", str(photos["zip"]), str(photos["folder"])], capsys)
    assert both["counts"] == {"train": 16, "test": 8}
    (photos["folder"] / "train/red/0.png").write_text("words")
    found = run(["data", "check", str(photos["folder"])], capsys, 1)
    assert (found["ok"], [*found["broken"]]) == (False, ["train/red/0.png"])
    (photos["coop"] / "images/train/red/0.png").unlink()
    assert run(["data", "check", str(photos["coop"]), "--no-decode"], capsys, 1)["missing"] == [
        "train/red/0.png"
    ]


def test_list_and_get(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    listed = run(["data", "list", "--root", str(tmp_path)], capsys)
    assert len(listed["benchmarks"]) == 15
    assert {row["there"] for row in listed["benchmarks"]} == {False}
    got = run(["data", "get", "imagenet-r", "--root", str(tmp_path)], capsys)
    assert (got["name"], got["why"]) == ("ImageNetR", "torchvision does not download it")
    assert "unknown benchmark 'foods'" in refused(["data", "get", "foods", "--root", str(tmp_path)], capsys)
    assert "give --root or set" in refused(["data", "get", "dtd"], capsys)


def test_bad_input(photos: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, table = photos["folder"], photos["table"]
    assert "does not exist" in refused(pick(tmp_path / "nowhere"), capsys)
    line = refused(pick(folder, 3), capsys)
    assert "class 0 (blue) has 2 images, fewer than 3 shots" in line
    run([*pick(folder, 3), "--dataset.allow-fewer", "--dry-run"], capsys)
    (tmp_path / "names.json").write_text('{"blue": "a", "green": "b", "red": "c", "sea": "A"}')
    line = refused([*pick(folder), "--dataset.classnames", str(tmp_path / "names.json")], capsys)
    assert "the classes 'blue' and 'sea' have the same name" in line
    line = refused([*pick(folder), "--dataset.template", "a photo"], capsys)
    assert "has no {} for the class name" in line
    table.write_text(table.read_text().replace("red", "-1"))
    assert "label -1 is out of range" in refused(pick(table), capsys)
    (photos["coop"] / "images/train/red/0.png").unlink()
    assert "1 of 8 images is missing" in refused(pick(photos["coop"]), capsys)
    (folder / "train/red/1.png").write_bytes(b"")
    assert "1 of 8 images is empty" in refused(pick(folder), capsys)
    (folder / "train/red/1.png").write_text("words")
    broken = run(["data", "check", str(folder)], capsys, 1)["broken"]
    assert "it is not an image of a supported format" in broken["train/red/1.png"]
    run([*pick(folder), "--dataset.broken", "skip", "--dry-run"], capsys)
    with zipfile.ZipFile(tmp_path / "bad.zip", "w") as file:
        file.writestr("../out.png", b"x")
    assert "leads out of the image folder" in refused(pick(tmp_path / "bad.zip"), capsys)
    assert not [*tmp_path.rglob("*.part")]
    assert not (tmp_path / "cache/archives").exists()


@pytest.mark.skipif(not CALTECH.is_dir(), reason="the shared Caltech-101 subset is not here")
def test_caltech_is_told_from_the_standard_split(capsys: pytest.CaptureFixture[str]) -> None:
    found = run(["data", "check", str(CALTECH), "--no-decode"], capsys)
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


def assert_told(lines: list[str], told: list[str]) -> None:
    """Each line has its words."""
    assert [words if words in line else line for words, line in zip(told, lines, strict=True)] == told


class TestFaults:
    """`data check` names every fault at once; whoever would use the data gets the first."""

    def found(self, place: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
        first = refused(pick(place), capsys)
        found: dict[str, Any] = run(["data", "check", str(place)], capsys, 1)
        assert found == run(["data", "check", str(place), "--dataset.broken", "skip"], capsys, 1)
        assert found["ok"] is False
        assert found["faults"][0] in first
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert main(["data", "check", str(place)]) == 1
        assert "NOT OK" in capsys.readouterr().out
        return found

    def test_of_a_table(
        self, photos: dict[str, Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """All are in JSON, and the texts of two on the screen."""
        table = photos["table"].with_suffix(".jsonl")
        rows = [line.split(",") for line in photos["table"].read_text().splitlines()[1:]]
        rows += [["train/red/9.png", "red", "later"], ["../x.png", "red", "test"], ["", "red", "test"]]
        rows += [["./train//red/0.png", "red", "test"], ["train/red/9.png", "red", "train"]]
        made = [json.dumps(dict(zip(("path", "label", "split"), row, strict=True))) for row in rows]
        table.write_text("\n".join(["", *made, "[1,", '{"path": "y", "label": true}']))
        found = self.found(table, capsys)
        told = ["not train, val or test", "leads out", "needs path, label", "already in"]
        assert_told(found["faults"], [*told, "it is not readable JSON", "needs path, label"])
        assert found["missing"] == ["train/red/9.png"]
        assert found["counts"] == {"train": 9, "test": 4}
        monkeypatch.setattr(data, "MOST_LINES", 2)
        assert main(["data", "check", str(table)]) == 1
        assert "4 more (--json has all)" in capsys.readouterr().out

    def test_of_a_split_list(self, photos: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
        file = photos["coop"] / "split_zhou_Photos.json"
        rows = json.loads(file.read_text())
        rows["test"] += [rows["train"][0], ["/x.png", 0, "blue"], ["y.png", True, "green"], "z.png"]
        file.write_text(json.dumps(rows))
        (photos["coop"] / "images" / rows["train"][1][0]).write_text("words")
        (photos["coop"] / "images" / rows["train"][2][0]).unlink()
        found = self.found(photos["coop"], capsys)
        told = ["test[5]: the path '/x.png' leads out", "test[6]", "test[7]", "is in both train and test"]
        assert_told(found["faults"], told)
        assert found["missing"] == [rows["train"][2][0]]
        assert [*found["broken"]] == [rows["train"][1][0], rows["train"][2][0]]

    def test_of_a_folder(self, photos: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
        folder = photos["folder"]
        for name in ("train/Red", "train/empty", "test/foreign", "test/strange"):
            (folder / name).mkdir()
        (folder / "train/red/0.png").write_text("words")
        for name in ("Red", "empty"):
            (folder / "train" / name / "words.txt").write_text("words")
        found = self.found(folder, capsys)
        told = ["foreign is a class that", "strange is a class that"]
        told += ["'Red' has no images", "'empty' has no images", "the same name"]
        assert_told(found["faults"], told)
        assert [*found["broken"]] == ["train/red/0.png"]


def test_an_error_before_the_work_stands_alone(
    photos: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Though the data set has a note: that its images have been split."""
    shutil.copytree(photos["folder"] / "train", unsplit := tmp_path / "unsplit")
    words, out = ["--data", str(unsplit), "--model", "tiny"], str(tmp_path / "out")
    many = ["--shots", "99", "--out", out]
    for asked in (
        ["run", "few-shot", "--methods", "coop", *words, *many],
        ["run", "few-shot", "--methods", "coop", *words, *many, "--dry-run"],
        ["fit", "--method", "coop", *words, *many],
        ["fit", "--method", "coop", *words, "--out", out, "--coop.tokens", "77"],
        ["roles", "ablate", *words, "--heads", "99"],
    ):
        assert main(asked) == 2
        told = capsys.readouterr().err
        assert (told.count("\n"), told.startswith("dear: error: ")) == (1, True), told
    asked = ["run", "few-shot", "--methods", "zero-shot", *words, "--shots", "1", "--dry-run", "--out", out]
    assert main(asked) == 0
    assert capsys.readouterr().err.startswith("dear: note: unsplit: the data has no split")
