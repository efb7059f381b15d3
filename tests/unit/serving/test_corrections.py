"""Corrections through the API: of a served zip, and where the disk or a file fails."""

import errno
import zipfile
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from dear.backbone.clip import Clip
from dear.data.loading import load_dataset
from dear.data.sources.corrections import read_corrections
from dear.serving.service import Service
from tests.helpers.bundles import small_predictor
from tests.helpers.server import picture, png

pytest.importorskip("fastapi", reason="the extra `app` is not installed")
from fastapi.testclient import TestClient

from dear.serving.app import create_app


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """A zip of two classes with three images each, in a folder in which there is another image."""
    place = tmp_path / "served"
    place.mkdir()
    picture(99).save(place / "beside.png")
    with zipfile.ZipFile(place / "photos.zip", "w") as file:
        for number in range(6):
            name = ("owl", "ant")[number % 2]
            file.writestr(f"photos/{name}/{number}.png", png(picture(number)))
    return place / "photos.zip"


def client_of(clip: Clip, data: Path) -> TestClient:
    app = create_app(Service(small_predictor(clip), data=data))
    return TestClient(app, base_url="http://127.0.0.1", raise_server_exceptions=False)


def send(client: TestClient, image: Image.Image, label: str, **more: Any) -> Any:
    named = {"label": label, "name": "new.png"} | more
    return client.post("/api/labels", params=named, content=png(image))


def test_corrections_of_a_zip_reach_the_next_fit(
    small_clip: Clip, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside = archive.parent / "inside"
    inside.mkdir()
    monkeypatch.chdir(inside)  # where paths are read beside the table, this does not matter
    client = client_of(small_clip, archive)
    assert send(client, picture(0), "ant", new=True).json() == {"label": "ant", "is_in_data": True}
    assert send(client, picture(1), "none").json() == {"label": "remove", "is_in_data": True}
    assert send(client, picture(99), "ant").json()["is_in_data"] is False
    rows = {row.path: row.label for row in read_corrections(archive.with_name("corrections.csv"))}
    assert rows == {"owl/0.png": "ant", "ant/1.png": "remove", "new.png": "ant"}
    with pytest.warns(UserWarning, match="1 image left out, 1 label changed, 1 of files that are not here"):
        dataset = load_dataset(archive)
    assert len(dataset.train) + len(dataset.test) == 5


def test_a_label_that_is_no_class_is_asked_for(small_clip: Clip, archive: Path) -> None:
    """The nearest class is one of the bundle; a new one is a class from then on."""
    client, [name, *_] = client_of(small_clip, archive), small_predictor(small_clip).classes
    asked = send(client, picture(0), f"{name}s")
    assert (asked.status_code, asked.json()["kind"], asked.json()["nearest"]) == (409, "new-class", name)
    assert not archive.with_name("corrections.csv").exists()
    assert send(client, picture(0), "starfish", new=True).json()["label"] == "starfish"
    assert send(client, picture(1), "Starfish").status_code == 200


@pytest.mark.parametrize(
    ("code", "status"), [(errno.ENOSPC, 507), (errno.EDQUOT, 507), (errno.EACCES, 500), (errno.EROFS, 507)]
)
@pytest.mark.parametrize(
    "failing", ["dear.writing.os.replace", "dear.data.sources.archive.shutil.copyfileobj"]
)
def test_a_disk_that_takes_nothing_is_the_servers_fault(
    small_clip: Clip, archive: Path, monkeypatch: pytest.MonkeyPatch, code: int, status: int, failing: str
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(code, "injected", str(archive))

    monkeypatch.setattr(failing, fail)
    answer = send(client_of(small_clip, archive), picture(0), "none")
    assert (answer.status_code, answer.json()["kind"]) == (status, "server")
    assert str(archive.parent) not in answer.text
    assert not archive.with_name("corrections.csv").exists()


def test_an_error_of_the_disk_anywhere_says_no_path(
    small_clip: Clip, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "injected", str(archive))

    monkeypatch.setattr("dear.serving.service.hash_files", fail)
    answer = send(client_of(small_clip, archive), picture(0), "none")
    assert (answer.status_code, str(archive.parent) in answer.text) == (507, False)


@pytest.mark.parametrize("damaged", ["photos.zip", "corrections.csv"])
def test_a_damaged_file_is_the_servers_fault(small_clip: Clip, archive: Path, damaged: str) -> None:
    (archive.parent / damaged).write_bytes(b"path,label,hash\nx.png,owl,nothex\n")
    answer = send(client_of(small_clip, archive), picture(0), "none")
    assert (answer.status_code, answer.json()["kind"]) == (500, "server")
    assert str(archive.parent) not in answer.text
