"""The API with an index of images: neighbors, thumbnails, and what it says of this machine."""

import base64
import io
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from dear.adapters.index_encoder import BundleEncoder
from dear.adapters.predictor import Predictor
from dear.backbone.clip import Clip
from dear.errors import DataError
from dear.retrieval.build import build_index
from dear.retrieval.encoder import encoder_for
from dear.retrieval.index import open_index
from dear.serving.limits import Limits
from dear.serving.service import Service
from tests.conftest import small_clip_of
from tests.helpers.bundles import small_predictor
from tests.helpers.server import bomb, picture, png

pytest.importorskip("fastapi", reason="the extra `app` is not installed")
from fastapi.testclient import TestClient

from dear.serving.app import create_app

QUERY = png(picture(3))


@pytest.fixture
def predictor(small_clip: Clip) -> Predictor:
    return small_predictor(small_clip)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Seven pictures."""
    folder = tmp_path / "images"
    folder.mkdir()
    for seed in range(7):
        (folder / f"{seed}.png").write_bytes(png(picture(seed)))
    return folder


Serve = Callable[..., TestClient]


@pytest.fixture
def serve(predictor: Predictor) -> Iterator[Serve]:
    """``serve(folder, **options)``: a client of a server with an index of a folder, beside it."""
    with ExitStack() as stack:

        def serve(folder: Path, **options: Any) -> TestClient:
            index = folder.with_name("index")
            build_index(BundleEncoder(predictor), folder, index)
            app = create_app(Service(predictor, index=open_index(index), **options))
            return stack.enter_context(TestClient(app, base_url="http://a"))

        yield serve


def find(client: TestClient, **parameters: object) -> list[dict[str, Any]]:
    answer = client.post("/api/neighbors", params=parameters, content=QUERY)  # type: ignore[arg-type]
    assert answer.status_code == 200, answer.text
    neighbors: list[dict[str, Any]] = answer.json()["neighbors"]
    return neighbors


def test_an_index_that_is_built_anew_and_of_another_bundle(
    serve: Serve, predictor: Predictor, folder: Path
) -> None:
    client = serve(folder)
    (folder / "6.png").unlink()  # a build while it runs
    build_index(BundleEncoder(predictor), folder, folder.with_name("index"))
    assert {row["path"] for row in find(client, count=100)} == {f"{seed}.png" for seed in (0, 1, 2, 4, 5)}
    other = small_predictor(predictor.clip)
    other.bundle.tensors["fusion"].add_(1)  # type: ignore[attr-defined]
    with pytest.raises(DataError):
        Service(other, index=open_index(folder.with_name("index")))


def test_neighbors_of_an_index_of_heads(predictor: Predictor, folder: Path) -> None:
    path = folder.with_name("heads")
    encoder = encoder_for(predictor.clip, predictor.bundle.roles)
    build_index(encoder, folder, path)
    client = TestClient(create_app(Service(predictor, index=open_index(path))), base_url="http://a")
    hits = open_index(path).query_image(encoder, folder / "3.png", {"object": 1, "class": 0.5}, count=3)
    found = find(client, by="object,class", weights="1,0.5", count=3)
    assert [row["path"] for row in found] == [hit.path for hit in hits]
    assert client.get("/api/info").json()["index"]["features"] == ["class", "color", "object"]
    assert client.post("/api/predict", content=QUERY).status_code == 200
    with pytest.raises(DataError):
        Service(small_predictor(small_clip_of(seed=1)), index=open_index(path))


def test_of_many_copies_some_are_told(serve: Serve, tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    for number in range(25):
        (tmp_path / "photos" / f"{number}.png").write_bytes(png(picture(1)))
    [hit] = find(serve(tmp_path / "photos"))
    assert (len(hit["copies"]), hit["more_copies"]) == (20, 4)


def test_thumbnails_are_of_what_was_indexed_and_could_be_uploaded(serve: Serve, folder: Path) -> None:
    Image.new("RGB", (200, 20_000)).save(folder / "long.png")
    (folder / "pixels.png").write_bytes(bomb(9000, 1000))
    Image.effect_noise((2000, 2000), 100).save(folder / "bytes.png")  # some 3 MB
    client = serve(folder, limits=Limits(upload=1, megapixels=8.9))
    (folder / "0.png").unlink()
    (folder / "1.png").write_bytes(png(picture(99)))  # changed since
    for _ in range(2):  # the second from memory
        thumbnails = {row["path"]: row["thumbnail"] for row in find(client, count=20, thumbnails=True)}
        shown = {path for path, thumbnail in thumbnails.items() if thumbnail}
        assert thumbnails.keys() - shown == {"0.png", "1.png", "pixels.png", "bytes.png"}
        with Image.open(io.BytesIO(base64.b64decode(thumbnails["long.png"]))) as thumbnail:
            assert thumbnail.size == (40, 640)  # of 16 squares
    assert all("thumbnail" not in row for row in find(client))


def test_what_an_index_says_of_this_machine_stays_here(
    serve: Serve, predictor: Predictor, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def query(*_: object, **__: object) -> None:
        raise DataError("the index /home/somebody/photos.index is damaged")

    client = serve(folder)
    monkeypatch.setattr("dear.retrieval.index.Index.query", query)
    answer = client.post("/api/neighbors", content=QUERY)
    assert (answer.status_code, answer.json()["kind"], "somebody" in answer.text) == (503, "server", False)
    without = TestClient(create_app(Service(predictor)), base_url="http://a")
    assert without.post("/api/neighbors", content=QUERY).status_code == 404
