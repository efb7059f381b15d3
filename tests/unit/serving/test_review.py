"""The review through the API: answers are what `dear labels apply` would have written, and can be undone."""

import csv
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dear.adapters.labels import CorrectedData, apply_labels
from dear.adapters.review import issues_csv
from dear.adapters.review_answers import ReviewAnswers, read_issues
from dear.backbone.clip import Clip
from dear.cli.main import main
from dear.curation.issues import Issue
from dear.data.settings import DataSettings
from dear.data.sources.corrections import read_corrections
from dear.serving.review import create_review_app, review_of
from dear.serving.service import Service
from tests.documented import blocks
from tests.helpers.bundles import small_predictor
from tests.helpers.server import serving
from tests.unit.data.photos import class_folders

pytest.importorskip("fastapi", reason="the extra `app` is not installed")
from starlette.testclient import TestClient

from dear.serving.app import create_app

URL, BEARER = "http://127.0.0.1", {"Authorization": "Bearer s3cret"}
ADDRESS = "http://127.0.0.1:7861"
CONFUSED = (("ant", "bee", 3, 12),)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Three classes of six images; ant/copy.png has the bytes of ant/5.png."""
    photos = class_folders(tmp_path / "photos", {"ant": 6, "bee": 6, "sea_horse": 6})
    shutil.copy(photos / "ant/5.png", photos / "ant/copy.png")
    return photos


@pytest.fixture
def issues(photos: Path) -> list[Issue]:
    """Six images of which something looks wrong; the last is there twice."""
    doubtful = ["ant/0.png", "ant/1.png", "bee/2.png", "bee/3.png", "ant/5.png"]
    wrong = [
        Issue(str(photos / name), name[:3], "sea horse", 0.9 - 0.1 * at) for at, name in enumerate(doubtful)
    ]
    return [*wrong, Issue(str(photos / "bee/4.png"), "bee", "ant", other=str(photos / "ant/4.png"))]


@pytest.fixture
def client(photos: Path, issues: list[Issue]) -> Iterator[TestClient]:
    review = ReviewAnswers(issues, [CorrectedData.read(photos, DataSettings())], CONFUSED)
    app = create_review_app(review, token="s3cret", hosts=None)
    with TestClient(app, base_url=URL, headers=BEARER, raise_server_exceptions=False) as client:
        yield client


def say(client: TestClient, number: int, label: str, **more: Any) -> Any:
    return client.post("/api/review/answer", params={"number": number, "label": label} | more)


def rows(photos: Path) -> dict[str, str]:
    return {row.path: row.label for row in read_corrections(photos / "corrections.csv")}


def test_answers_are_those_of_a_table(client: TestClient, photos: Path, issues: list[Issue]) -> None:
    shown = client.get("/api/review").json()
    assert [image["name"] for image in shown["images"]] == [
        "ant/0.png", "ant/1.png", "bee/2.png", "bee/3.png", "ant/5.png", "bee/4.png", "ant/4.png",
    ]  # fmt: skip
    assert [image["twin"] for image in shown["images"]] == [None] * 5 + [6, 5]
    assert shown["images"][6] | {"name": ""} == {
        "name": "", "label": "ant", "suggested": "bee", "probability": None, "twin": 5,
    }  # fmt: skip
    assert shown["classes"] == ["ant", "bee", "sea horse"]
    assert shown["confused"] == [{"classes": ["ant", "bee"], "taken": 3, "images": 12}]
    answers = ["keep", "Sea Horse", "ant", "remove", "none"]
    for number, label in enumerate(answers):
        assert say(client, number, label).status_code == 200
    told = client.get("/api/review").json()["answers"]
    assert told == {"0": "ant", "1": "sea horse", "2": "ant", "3": "remove", "4": "remove"}
    by_page = read_corrections(photos / "corrections.csv")
    # The same answers in a table; none is of the copy too, which it has to name.
    (photos / "corrections.csv").unlink()
    names = [*(Path(issue.image) for issue in issues[:5]), photos / "ant/copy.png"]
    with (photos.parent / "t.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["path", "label"], *zip(names, [*answers, "none"], strict=True)])
    text = (photos.parent / "t.csv").read_text().replace(",keep", ",ant")
    (photos.parent / "t.csv").write_text(text)
    apply_labels(photos.parent / "t.csv", photos)
    assert by_page == read_corrections(photos / "corrections.csv")


@pytest.mark.parametrize("is_gone", [True, False])
def test_the_images_of_a_review_are_found_where_they_are_now(
    photos: Path, issues: list[Issue], tmp_path: Path, *, is_gone: bool
) -> None:
    """Moved or copied; but not others with the same names, nor where two could be meant."""
    now = tmp_path / "mounted" / "here"
    shutil.copytree(photos, now)
    shutil.copytree(now / "bee", now / "more" / "bee")  # bee/2.png ends like two
    shutil.copy(now / "bee/5.png", now / "ant/0.png")  # another picture
    if is_gone:
        shutil.rmtree(photos)
    with pytest.warns(UserWarning, match="of the review"):
        review = ReviewAnswers(issues, [CorrectedData.read(now, DataSettings())])
    names = [doubt.name for doubt in review.doubts]
    assert names == ["ant/0.png"] * is_gone + ["ant/1.png", "ant/5.png", "ant/4.png"]
    reviewed = tmp_path / "review.csv"
    reviewed.write_text(f"path,label\n{photos / 'ant/1.png'},bee\n{photos / 'bee/2.png'},ant\n")
    applied = apply_labels(reviewed, now)
    assert rows(now) == {"ant/1.png": "bee"}
    assert applied.elsewhere == (str(photos / "bee/2.png"),)


def test_an_answer_is_taken_back(client: TestClient, photos: Path, issues: list[Issue]) -> None:
    """To the answer before, and also one of an earlier server."""
    say(client, 0, "bee")
    say(client, 4, "none")
    assert rows(photos) == {"ant/0.png": "bee", "ant/5.png": "remove", "ant/copy.png": "remove"}
    say(client, 4, "sea horse")  # in place of none, also for the copy
    assert rows(photos) == {"ant/0.png": "bee", "ant/5.png": "sea_horse"}
    undone = client.post("/api/review/undo", params={"number": 4})
    assert undone.json()["answers"] == {"0": "bee", "4": "remove"}
    client.post("/api/review/undo", params={"number": 4})
    assert client.post("/api/review/undo", params={"number": 4}).status_code == 200  # there is none
    assert rows(photos) == {"ant/0.png": "bee"}
    again = ReviewAnswers(issues, [CorrectedData.read(photos, DataSettings())])
    assert again.answers() == {0: "bee"}
    again.undo(0)
    assert rows(photos) == {}


def test_a_name_that_is_no_class_is_asked_for(client: TestClient, photos: Path) -> None:
    asked = say(client, 0, "see horse")
    assert (asked.status_code, asked.json()["kind"], asked.json()["nearest"]) == (
        409,
        "new-class",
        "sea horse",
    )
    assert (say(client, 0, "owl").json()["nearest"], rows(photos)) == (None, {})
    assert say(client, 0, "owl", new=True).json()["answers"] == {"0": "owl"}
    assert say(client, 1, "Owl").status_code == 200  # it is a class now
    assert "owl" in client.get("/api/review").json()["classes"]


def test_what_is_refused(client: TestClient, photos: Path) -> None:
    assert [say(client, number, "ant").status_code for number in (-1, 7)] == [404, 404]
    assert [say(client, 0, label).status_code for label in ("", " _ ", "x" * 5000)] == [400, 400, 413]
    picture = client.get("/api/review/image", params={"number": 0})
    assert (picture.headers["content-type"], picture.content[:2]) == ("image/jpeg", b"\xff\xd8")
    (photos / "ant/0.png").unlink()
    gone = client.get("/api/review/image", params={"number": 0})
    assert (gone.status_code, str(photos) in gone.text) == (422, False)
    (photos / "corrections.csv").write_text("no table")
    broken = say(client, 1, "ant")
    assert (broken.status_code, broken.json()["kind"], str(photos) in broken.text) == (500, "server", False)
    assert (photos / "corrections.csv").read_text() == "no table"
    for path in ("/api/review", "/api/review/image?number=1"):
        assert client.get(path, headers={"Authorization": "no"}).status_code == 401
    assert client.post("/api/review/undo?number=1", headers={"Authorization": "no"}).status_code == 401


def test_the_table_of_a_fit_has_the_review(photos: Path, issues: list[Issue], tmp_path: Path) -> None:
    """With the labels as they were, whatever somebody has written there since."""
    (tmp_path / "bundle").mkdir()
    text = issues_csv(tmp_path / "bundle", issues).decode("utf-8-sig").replace(",ant,sea", ",bee,sea")
    (tmp_path / "bundle" / "review.csv").write_text(text)
    read = read_issues(tmp_path / "bundle")
    assert [(issue.image, issue.label, issue.suggested, issue.other) for issue in read] == [
        (issue.image, issue.label, issue.suggested, issue.other) for issue in issues
    ]
    assert [issue.probability for issue in read] == pytest.approx([0.9, 0.8, 0.7, 0.6, 0.5, None])
    assert read_issues(photos) == []


def test_a_bundles_server_has_its_review(
    small_clip: Clip, photos: Path, issues: list[Issue], tmp_path: Path
) -> None:
    """Once it is told where the data is. The requests of the guide run as they are written."""
    predictor = small_predictor(small_clip)
    assert review_of(predictor.bundle, tmp_path, photos) is None
    (tmp_path / "review.csv").write_bytes(issues_csv(tmp_path, []))
    assert review_of(predictor.bundle, tmp_path, photos) is None  # it has found nothing
    (tmp_path / "review.csv").write_bytes(issues_csv(tmp_path, issues))
    with TestClient(create_app(Service(predictor), page=True), base_url=URL) as client:
        assert client.get("/api/info").json()["review"] is False
        assert client.get("/api/review").status_code == 404
    desk = review_of(predictor.bundle, tmp_path, photos)
    app = create_app(Service(predictor, data=photos, review=desk), token="s3cret", page=True)
    with TestClient(app, base_url=URL) as client:
        assert client.get("/review?token=s3cret", follow_redirects=False).headers["location"] == "./review"
        assert client.get("/review", headers=BEARER).text.startswith("<!doctype html>")
        assert client.get("/api/info", headers=BEARER).json()["review"] is True
    curl = [block for block in blocks("docs/serve.md", "sh") if "/api/review" in block and "curl" in block]
    [python] = (block for block in blocks("docs/serve.md", "python") if "review/answer" in block)
    with serving(app) as address:
        if shutil.which("curl"):
            shell = (
                "".join(curl)
                .replace(ADDRESS, address.rstrip("/"))
                .replace("curl ", "curl -s --fail-with-body ")
            )
            environment = {"DEAR_TOKEN": "s3cret", "HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
            done = subprocess.run(
                ["bash", "-ec", shell], env=environment, capture_output=True, text=True, cwd=tmp_path
            )
            assert done.returncode == 0, done.stdout + done.stderr
            assert rows(photos) == {}  # it is undone
        exec(
            compile(
                python.replace(ADDRESS, address.rstrip("/")).replace('"TOKEN"', '"s3cret"'),
                "serve.md",
                "exec",
            ),
            {},
        )
    assert rows(photos) == {"ant/0.png": "sea_horse"}  # the only one that is likely enough


@pytest.mark.usefixtures("only_clip")
def test_the_command_serves_what_it_finds(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And what cannot be served is refused before anything is computed."""
    shutil.copy(photos / "ant/0.png", photos / "bee/ant.png")
    (photos / "ant/copy.png").unlink()

    def click(app: Any, _socket: Any, _prefix: str, started: Any) -> None:
        started()
        [token] = re.findall(r"http://127\.0\.0\.1:\d+/\?token=(\w{32}) ", capsys.readouterr().err)
        with TestClient(app, base_url=URL, headers={"Authorization": f"Bearer {token}"}) as client:
            assert client.get("/").text.startswith("<!doctype html>")
            named = [image["name"] for image in client.get("/api/review").json()["images"]]
            assert say(client, named.index("bee/ant.png"), "remove").status_code == 200

    monkeypatch.delenv("DEAR_TOKEN", raising=False)
    monkeypatch.setattr("dear.serving.server.run", click)
    words = [
        "review",
        str(photos),
        "--out",
        str(tmp_path / "review"),
        "--method",
        "dear+",
        "--serve",
        "--port",
        "0",
    ]
    assert main(words) == 0
    assert "1 image answered" in capsys.readouterr().out
    assert rows(photos) == {"bee/ant.png": "remove"}
    assert main([*words, "--token", "a;b"]) == 2
    assert main(["review", "mixed-paints", *words[2:]]) == 2
    assert "neither a folder nor a file" in capsys.readouterr().err
