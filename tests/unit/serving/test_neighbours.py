"""The HTTP API with an index of images: neighbours, thumbnails, and what it says of this machine."""

import base64
import io
import json
import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from dear.adapters.index_encoder import BundleEncoder
from dear.adapters.predictor import Predictor
from dear.backbone.clip import Clip
from dear.errors import DataError
from dear.retrieval.build import build_index
from dear.retrieval.encoder import encoder_for
from dear.retrieval.index import open_index
from dear.retrieval.storage import FILE
from dear.serving.examples import examples_of
from dear.serving.limits import Limits
from dear.serving.service import Service
from tests.conftest import small_clip_of
from tests.unit.serving.small import picture, png, small_predictor

pytest.importorskip("fastapi", reason="the extra `app` is not installed")
from fastapi.testclient import TestClient

from dear.serving.api import create_app

URL = "http://127.0.0.1"
LIMITS = Limits(upload=0.5, megapixels=40, wait=0)


@pytest.fixture
def predictor(small_clip: Clip) -> Predictor:
    return small_predictor(small_clip)


def refused(answer: Any, status: int) -> str:
    assert answer.status_code == status, answer.text
    assert set(answer.json()) == {"error", "kind"}
    return str(answer.json()["error"])


def test_of_many_copies_some_are_told(
    predictor: Predictor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer of 44 MB to a small picture, 110 times, took 4.8 GB. A long answer is work."""
    folder, charged = tmp_path / "photos", list[float]()
    for number in range(25):
        (folder / f"{number:03}{'x' * 200}.png").parent.mkdir(exist_ok=True)
        (folder / f"{number:03}{'x' * 200}.png").write_bytes(png(picture(1)))
    build_index(BundleEncoder(predictor), folder, tmp_path / "index")
    monkeypatch.setattr("dear.serving.api.work_of_answer", lambda size: charged.append(size) or 0.0)
    service = Service(predictor, LIMITS, open_index(tmp_path / "index"))
    with TestClient(create_app(service), base_url=URL) as client:
        answer = client.post("/api/neighbours", content=png(picture(2))).json()
    (hit,) = answer["neighbours"]
    assert (len(hit["copies"]), hit["more_copies"]) == (20, 4)
    names = [hit["path"], *hit["copies"]]
    assert charged[-2] == sum(map(len, names)) > 21 * 200  # before the answer is made, which takes longer
    assert charged[-1] > charged[-2]


def test_a_request_that_waits_for_thumbnails_has_few_names(predictor: Predictor, tmp_path: Path) -> None:
    """1,000 copies of each hit stayed: 224 requests took the server from 711 to 3,832 MiB."""
    folder = tmp_path / "photos"
    folder.mkdir()
    for number in range(25):
        (folder / f"{number}.png").write_bytes(png(picture(1)))
    build_index(BundleEncoder(predictor), folder, tmp_path / "index")
    service = Service(predictor, LIMITS, open_index(tmp_path / "index"))
    features = service.search_features(service.take(png(picture(2)))).result()
    (hit,) = service.neighbours(features, ["class"])
    assert (len(hit.copies), hit.more_copies) == (20, 4)


def test_thumbnails_of_a_strangers_index(predictor: Predictor, tmp_path: Path) -> None:
    """Its facts may name a folder of this machine, and its files links: only what it knows is shown."""
    theirs, mine = tmp_path / "theirs", tmp_path / "mine"
    for folder in (theirs, mine):
        folder.mkdir()
    for name, seed in (("same.png", 1), ("private.png", 2), ("link.png", 3)):
        (theirs / name).write_bytes(png(picture(seed)))
    (mine / "same.png").write_bytes(png(picture(1)))
    (mine / "private.png").write_bytes(png(picture(4)))
    (mine / "link.png").symlink_to("private.png")
    build_index(BundleEncoder(predictor), theirs, tmp_path / "index")
    with closing(sqlite3.connect(tmp_path / "index" / FILE)) as database, database:
        database.execute("UPDATE facts SET value = ? WHERE key = 'folder'", (json.dumps(str(mine)),))
    service = Service(predictor, LIMITS, open_index(tmp_path / "index"))
    with TestClient(create_app(service), base_url=URL) as client:
        answer = client.post("/api/neighbours?thumbnails=true", content=png(picture(0))).json()
    shown = {hit["path"]: hit["thumbnail"] for hit in answer["neighbours"]}
    assert shown.keys() == {"same.png", "private.png", "link.png"}
    assert [path for path, thumbnail in shown.items() if thumbnail] == ["same.png"]


def test_thumbnails_of_long_pictures_are_small(predictor: Predictor, tmp_path: Path) -> None:
    """Of 160 x 65,500 pixels one was 31 MB of PNG, and of a hundred all were kept."""
    (tmp_path / "photos").mkdir()
    Image.effect_noise((200, 20_000), 100).save(tmp_path / "photos" / "long.png")
    build_index(BundleEncoder(predictor), tmp_path / "photos", tmp_path / "index")
    service = Service(predictor, Limits(wait=0), open_index(tmp_path / "index"))
    with TestClient(create_app(service), base_url=URL) as client:
        answer = client.post("/api/neighbours?thumbnails=true", content=png(picture(0))).json()
    [hit] = answer["neighbours"]
    with Image.open(io.BytesIO(base64.b64decode(hit["thumbnail"]))) as thumbnail:
        assert thumbnail.size == (40, 640)  # of 16 squares


@pytest.mark.skipif(os.name != "posix", reason="names of files are bytes on POSIX alone")
def test_names_that_are_not_utf8_leave_as_text(predictor: Predictor, tmp_path: Path) -> None:
    """One such picture of a stranger made every answer that held it a 500, and the page useless."""
    folder = tmp_path / "photos"
    folder.mkdir()
    for name in (b"a\xff.png", b"b\xfe.png"):  # of the same bytes: the second is a copy
        Path(os.fsdecode(os.fsencode(folder) + b"/" + name)).write_bytes(png(picture(1)))
    build_index(BundleEncoder(predictor), folder, tmp_path / "index")
    examples = examples_of(predictor.bundle, folder)
    service = Service(predictor, LIMITS, open_index(tmp_path / "index"), examples=examples)
    with TestClient(create_app(service), base_url=URL) as client:
        answer = client.post("/api/neighbours", content=png(picture(0))).json()
        assert [(hit["path"], hit["copies"]) for hit in answer["neighbours"]] == [("a?.png", ["b?.png"])]
        assert sorted(client.get("/api/info").json()["examples"]) == ["a?", "b?"]


def test_neighbours_of_an_index(predictor: Predictor, tmp_path: Path) -> None:
    folder = tmp_path / "images"
    folder.mkdir()
    for seed in range(7):
        (folder / f"{seed}.png").write_bytes(png(picture(seed)))
    encoder = BundleEncoder(predictor)
    build_index(encoder, folder, tmp_path / "index")
    service = Service(predictor, LIMITS, open_index(tmp_path / "index"))
    data = png(picture(3))
    with TestClient(create_app(service), base_url=URL) as client:
        found = client.post(
            "/api/neighbours",
            params={"by": "color,class", "weights": "1,0.5", "count": "3", "thumbnails": "true"},
            content=data,
        ).json()["neighbours"]
        assert "3 weights for 1" in refused(
            client.post("/api/neighbours?by=color&weights=1,2,3", content=data), 400
        )
        assert "weights must be numbers" in refused(
            client.post("/api/neighbours?by=color&weights=much", content=data), 400
        )
        nan = refused(client.post("/api/neighbours?by=color&weights=nan", content=data), 400)
        assert "positive weight" in nan
        assert "--" not in nan
        assert "no feature" in refused(client.post("/api/neighbours?by=", content=data), 400)
        (folder / "6.png").unlink()
        build_index(encoder, folder, tmp_path / "index")
        all_found = client.post("/api/neighbours?count=100", content=data).json()["neighbours"]
        assert {one["path"] for one in all_found} == {f"{seed}.png" for seed in (0, 1, 2, 4, 5)}
    features = torch.stack([predictor.encode(predictor.preprocess(picture(s))[None])[0] for s in range(7)])
    cosines = features.double() @ features[3].double().T  # item feature feature
    score = (cosines[:, 1, 1] + 0.5 * cosines[:, 0, 0]) / 1.5
    wanted = [f"{i}.png" for i in score.argsort(descending=True).tolist() if i != 3][:3]
    assert [one["path"] for one in found] == wanted
    assert all(one["thumbnail"] for one in found)
    other = small_predictor(predictor.clip)
    other.bundle.tensors["fusion"].add_(1)  # type: ignore[attr-defined]
    with pytest.raises(DataError, match="another bundle"):
        Service(other, LIMITS, open_index(tmp_path / "index"))


def test_neighbours_of_an_index_of_heads(predictor: Predictor, tmp_path: Path) -> None:
    folder, clip = tmp_path / "images", predictor.clip
    folder.mkdir()
    for seed in range(7):
        (folder / f"{seed}.png").write_bytes(png(picture(seed)))
    assert predictor.bundle.roles is not None
    encoder = encoder_for(clip, predictor.bundle.roles, folder, tmp_path / "index")
    build_index(encoder, folder, tmp_path / "index")
    service = Service(predictor, LIMITS, open_index(tmp_path / "index"))
    asked = {"by": "object,class", "weights": "1,0.5", "count": "3"}
    with TestClient(create_app(service), base_url=URL) as client:
        found = client.post("/api/neighbours", params=asked, content=png(picture(3))).json()["neighbours"]
        assert client.get("/api/info").json()["index"]["features"] == ["class", "color", "object"]
        assert client.post("/api/predict", content=png(picture(3))).status_code == 200
    want = open_index(tmp_path / "index").query_image(
        encoder, folder / "3.png", {"object": 1, "class": 0.5}, count=3
    )
    assert [one["path"] for one in found] == [hit.path for hit in want]
    other = small_predictor(small_clip_of(seed=1))
    with pytest.raises(DataError, match="features of two models"):
        Service(other, LIMITS, open_index(tmp_path / "index"))


def test_what_an_index_says_of_this_machine_stays_here(
    predictor: Predictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Damaged:
        def query(self, *_: object, **__: object) -> None:
            raise DataError("the index /home/somebody/photos.index is damaged")

    service = Service(predictor, LIMITS)
    monkeypatch.setattr(service, "index", Damaged())
    with TestClient(create_app(service), base_url=URL) as client:
        told = refused(client.post("/api/neighbours", content=png(picture())), 503)
    assert "somebody" not in told
