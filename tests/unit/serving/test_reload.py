"""A new bundle without a stop, the identity in answers, previews, and what is refused before a load."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from starlette.testclient import TestClient

from dear.adapters.predictor import Predictor
from dear.backbone.clip import Clip
from dear.errors import BundleError
from dear.serving.app import create_app
from dear.serving.service import Service
from tests.helpers.bundles import small_predictor
from tests.helpers.server import picture, png

PNG = png(picture(3))
URL, BEARER = "http://127.0.0.1", {"Authorization": "Bearer s3cret"}


@pytest.fixture
def predictor(small_clip: Clip) -> Predictor:
    return small_predictor(small_clip)


def client_of(
    predictor: Predictor, load: Callable[[Service], Service] | None, token: str | None = "s3cret"
) -> TestClient:
    return TestClient(create_app(Service(predictor), token=token, load=load), base_url=URL, headers=BEARER)


def test_a_new_bundle_is_taken_without_a_stop(predictor: Predictor) -> None:
    hotter = Predictor(replace(predictor.bundle, temperature=50.0), clip=predictor.clip)
    with client_of(predictor, lambda _: Service(hotter)) as client:
        before = client.post("/api/predict", content=PNG).json()
        assert before["bundle"] == client.get("/api/info").json()["bundle"]
        answer = client.post("/api/reload")
        assert (answer.status_code, answer.json()["changed"]) == (200, True)
        after = client.post("/api/predict", content=PNG).json()
        assert after["bundle"] == answer.json()["bundle"] != before["bundle"]
        assert after["top"][0]["probability"] < before["top"][0]["probability"]
        assert client.get("/api/info").json()["batches"]["images"] == 2
        assert client.post("/api/reload").json()["changed"] is False


def test_a_bundle_that_cannot_be_loaded_changes_nothing(predictor: Predictor) -> None:
    def fail(_: Service) -> Service:
        raise BundleError("/secret/place is damaged")

    with client_of(predictor, fail) as client:
        refused = client.post("/api/reload")
        assert refused.status_code == 409
        assert "secret" not in refused.text
        assert client.post("/api/predict", content=PNG).status_code == 200
    with client_of(predictor, lambda _: Service(predictor), token=None) as client:
        assert client.post("/api/reload").status_code == 404
    with client_of(predictor, lambda _: Service(predictor)) as client:
        assert client.post("/api/reload", headers={"Authorization": "no"}).status_code == 401


def test_a_preview_is_a_small_picture(predictor: Predictor) -> None:
    with client_of(predictor, None) as client:
        shown = client.post("/api/preview", content=PNG)
        assert (shown.status_code, shown.headers["content-type"]) == (200, "image/png")
        assert client.post("/api/preview", content=b"no picture").status_code == 415
