"""What people rely on of `dear index`: building, updating, searching, going on after a kill, and what is said
of an index that cannot be used.
"""

import json
import multiprocessing
import os
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

import dear
from dear.cli.main import main
from dear.retrieval.encoder import encoder_for
from tests.helpers.pictures import noise_pixels, save_picture

HEADS = ["--features", "heads", "--model", "tiny", "--device", "cpu"]
Dear = Callable[..., Any]


def paint(path: Path, seed: int) -> Path:
    """A picture of noise."""
    return save_picture(path, noise_pixels(seed, 16, 16))


@pytest.fixture(scope="module")
def gallery(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve pictures, four of them in a folder, and one copy; with their index beside them."""
    place = tmp_path_factory.mktemp("index")
    for seed in range(12):
        paint(place / "photos" / (f"{seed}.png" if seed < 8 else f"more/{seed}.png"), seed)
    shutil.copy(place / "photos" / "5.png", place / "photos" / "copy of 5.png")
    (place / "photos" / "notes.txt").write_text("no image")
    assert main(["index", "build", str(place / "photos"), *HEADS, "--out", str(place / "index")]) == 0
    return place


@pytest.fixture
def own(gallery: Path, tmp_path: Path) -> Path:
    """A copy of the pictures and, as a user would make it, their index."""
    shutil.copytree(gallery / "photos", tmp_path / "photos")
    assert main(["index", "build", str(tmp_path / "photos"), *HEADS, "--out", str(tmp_path / "index")]) == 0
    return tmp_path


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Dear:
    """Runs `dear index` with these words and --json; what it prints or, with code 2, its error."""

    def run(*words: object, code: int = 0) -> Any:
        capsys.readouterr()
        assert main(["index", *map(str, words), "--json"]) == code
        printed = json.loads(capsys.readouterr().out)
        return printed["error"] if code == 2 else printed

    return run


def ranking(answer: dict[str, Any]) -> list[tuple[str, float]]:
    return [(hit["path"], hit["score"]) for hit in answer["hits"]]


def build(run: Dear, place: Path, out: str = "index", code: int = 0) -> Any:
    return run("build", place / "photos", *HEADS, "--out", place / out, code=code)


def test_an_image_finds_its_neighbors_and_not_itself(gallery: Path, run: Dear) -> None:
    answer = run("query", gallery / "index", gallery / "photos" / "3.png", "--by", "texture", "--count", 20)
    assert answer["folder"] == str(gallery / "photos")
    assert len(answer["hits"]) == 11  # the copies are one
    assert [hit["copies"] for hit in answer["hits"] if hit["copies"]] == [["copy of 5.png"]]
    assert "3.png" not in dict(ranking(answer))
    scores = [score for _, score in ranking(answer)]
    assert scores == sorted(scores, reverse=True)
    itself = run("query", gallery / "index", gallery / "photos" / "3.png", "--itself", "--count", 1)
    assert ranking(itself) == [("3.png", pytest.approx(1, abs=1e-5))]


def test_texts_and_words(gallery: Path, run: Dear) -> None:
    by_text = run("query", gallery / "index", "a striped circle", "--text", "--by", "texture", "--count", 20)
    assert len(by_text["hits"]) == 12
    mixed = run(
        "query", gallery / "index", gallery / "photos" / "3.png", "--by", "texture,class", "--itself",
        "--words", "texture=a striped circle", "--count", 20,
    )  # fmt: skip
    texture = {hit["path"]: hit["by"]["texture"] for hit in by_text["hits"]}
    assert {hit["path"]: hit["by"]["texture"] for hit in mixed["hits"]} == pytest.approx(texture, abs=1e-6)


def test_a_page_shows_what_was_found(own: Path, run: Dear) -> None:
    query = [own / "index", own / "photos" / "3.png", "--by", "texture,shape", "--count", 20]
    (own / "photos" / "7.png").unlink()
    answer = run("query", *query, "--out", own / "page")
    text = (own / "page" / "query.html").read_text()
    assert answer["page"] == str(own / "page" / "query.html")
    assert answer["hits"] == run("query", *query)["hits"]
    shown = [path for path, _ in ranking(answer) if path != "7.png"]
    places = [text.index(f">{path}</span>") for path in shown]
    assert places == sorted(places)
    assert text.count("<img") == len(shown) + 1  # and the query
    assert "can no longer be read: 7.png" in text
    answer = run("query", own / "index", "a <b>striped</b> circle", "--text", "--out", own / "text")
    text = (own / "text" / "query.html").read_text()
    assert text.count("<img") == sum(path != "7.png" for path, _ in ranking(answer))
    assert "&lt;b&gt;striped" in text


def test_an_unreadable_file_is_tried_again(own: Path, run: Dear) -> None:
    content = (own / "photos" / "3.png").read_bytes()
    (own / "photos" / "3.png").write_bytes(b"no image")
    built = build(run, own, code=1)
    assert [*built["broken"]] == ["3.png"]
    assert built["files"] == 12
    assert build(run, own, code=1)["broken"] == built["broken"]
    stamp = (own / "photos" / "3.png").stat()
    (own / "photos" / "3.png").write_bytes(content)
    os.utime(own / "photos" / "3.png", ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    mended = build(run, own)
    assert (mended["broken"], mended["files"], mended["changed"], mended["encoded"]) == ({}, 13, 1, 1)
    assert mended["features"] == ["class", "texture", "shape", "place", "object"]
    assert mended["left_out"] == ["color"]


def build_and_die(photos: Path, out: Path) -> None:
    """A build that is killed in its second 32 files, some of whose vectors are written."""
    clip = dear.load_clip("tiny")
    encoder = encoder_for(clip, dear.role_table(clip))
    images, batches = encoder.images, []

    def encode(views: Tensor) -> Tensor:
        batches.append(len(views))
        if len(batches) == 6:
            os.kill(os.getpid(), signal.SIGKILL)
        return images(views)

    encoder.images = encode  # type: ignore[method-assign]
    dear.build_index(encoder, photos, out, batch=8)


def test_a_killed_build_goes_on(tmp_path: Path, run: Dear, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dear.retrieval.build.CHUNK", 32)
    for seed in range(50):
        paint(tmp_path / "photos" / f"{seed}.png", seed)
    killed = multiprocessing.get_context("fork").Process(
        target=build_and_die, args=(tmp_path / "photos", tmp_path / "index")
    )
    killed.start()
    killed.join()
    assert killed.exitcode == -signal.SIGKILL
    query = tmp_path / "photos" / "3.png"
    assert "dear index build" in run("query", tmp_path / "index", query, code=2)
    assert build(run, tmp_path)["encoded"] == 50 - 32
    answers = [run("query", tmp_path / "index", query, "--by", "class,texture", "--count", 50)]
    shutil.rmtree(tmp_path / "index")
    assert build(run, tmp_path)["encoded"] == 50
    answers.append(run("query", tmp_path / "index", query, "--by", "class,texture", "--count", 50))
    assert answers[0] == answers[1]


def test_features_of_a_bundle_and_an_index_of_another_model(
    gallery: Path, served: Path, tmp_path: Path, run: Dear
) -> None:
    bundle = dear.Bundle.from_pretrained(served / "my-classifier")
    tensors = {
        name: values + 0.1 if values.is_floating_point() else values
        for name, values in bundle.tensors.items()
    }
    replace(bundle, tensors=tensors).save_pretrained(tmp_path / "other")
    built = run("build", served / "my-classifier", gallery / "photos", "--out", tmp_path / "index")
    assert built["files"] == 13
    assert built["features"][0] == "class"
    by = ",".join(built["features"])
    answer = run("query", tmp_path / "index", gallery / "photos" / "3.png", "--by", by, "--count", 20)
    assert [*answer["hits"][0]["by"]] == built["features"]
    assert len(answer["hits"]) == 11
    query = [tmp_path / "index", gallery / "photos" / "3.png"]
    said = run("query", *query, "--bundle", tmp_path / "other", code=2)
    assert "another bundle" in said
    assert str(served / "my-classifier") in said
    assert "another" in run(
        "build", tmp_path / "other", gallery / "photos", "--out", tmp_path / "index", code=2
    )
    said = run("build", gallery / "photos", *HEADS, "--out", tmp_path / "index", code=2)
    assert "--out" in said
    run("build", tmp_path / "other", gallery / "photos", "--out", tmp_path / "moved")
    shutil.rmtree(tmp_path / "other")
    assert "--bundle" in run("query", tmp_path / "moved", gallery / "photos" / "3.png", code=2)


def test_what_is_no_index(gallery: Path, tmp_path: Path, run: Dear) -> None:
    said = run("query", tmp_path, gallery / "photos" / "3.png", code=2)
    assert "dear index build" in said
    said = run("query", gallery / "index", gallery / "photos" / "3.png", "--by", "color", code=2)
    assert "shape" in said
    (tmp_path / "photos").mkdir()
    assert str(tmp_path / "photos") in build(run, tmp_path, code=2)
    assert not (tmp_path / "index").exists()
