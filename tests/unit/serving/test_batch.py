"""Several images in a request: the answers of single requests, refusals by image, and turns with others."""

import asyncio
import json
import threading
from collections.abc import Sequence
from typing import Any

import pytest
from torch import Tensor

from dear.adapters.predictor import Predictor
from dear.backbone.clip import Clip
from dear.serving.limits import Limits
from dear.serving.service import Service
from tests.unit.serving.small import bomb, picture, png, small_predictor
from tests.unit.serving.test_names import Blocked, client_of, until

pytest.importorskip("fastapi", reason="the extra `app` is not installed")
from fastapi.testclient import TestClient

from dear.serving.api import create_app
from dear.serving.batch import AT_ONCE
from dear.serving.samples import samples

LONG = 60.0
URL = "http://127.0.0.1"


@pytest.fixture
def predictor(small_clip: Clip) -> Predictor:
    return small_predictor(small_clip)


def form_of(images: Sequence[bytes]) -> list[tuple[str, tuple[str, bytes]]]:
    return [("image", (f"{number}.png", data)) for number, data in enumerate(images)]


def client_with(predictor: Predictor, **limits: Any) -> TestClient:
    service = Service(predictor, Limits(**{"wait": 0, "rate": 0, **limits}))
    return TestClient(create_app(service), base_url=URL)


@pytest.mark.parametrize("classes", [None, "red house, blue tree, sea"])
def test_its_results_are_those_of_single_requests_in_order(predictor: Predictor, classes: str | None) -> None:
    images = [png(picture(seed)) for seed in range(7)]
    query = {"top": 2} if classes is None else {"top": 2, "classes": classes}
    with client_with(predictor) as client:
        answer = client.post("/api/batch", params=query, files=form_of(images))
        assert answer.status_code == 200, answer.text
        results = answer.json()["results"]
        assert len({json.dumps(result) for result in results}) == 7  # no two images have the same
        for image, result in zip(images, results, strict=True):
            single = client.post("/api/predict", params=query, content=image).json()
            for candidate, alone in zip(result["top"], single["top"], strict=True):
                assert candidate["name"] == alone["name"]
                assert candidate["probability"] == pytest.approx(alone["probability"], abs=1e-6)
                assert candidate["evidence"] == pytest.approx(alone["evidence"], abs=1e-4)


def test_an_image_that_is_refused_leaves_the_others(predictor: Predictor) -> None:
    images = [b"words", png(picture(1)), bomb(), png(picture(2))[:300], b"", png(picture(3))]
    with client_with(predictor) as client:
        results = client.post("/api/batch?top=1", files=form_of(images)).json()["results"]
        assert [result.get("status", 200) for result in results] == [415, 200, 413, 422, 400, 200]
        for image, result in zip(images, results, strict=True):
            single = client.post("/api/predict?top=1", files=form_of([image])).json()
            if "top" in single:
                assert [best["name"] for best in result["top"]] == [best["name"] for best in single["top"]]
            else:
                assert {**single, "status": result["status"]} == result


def test_a_batch_has_the_limits_of_one_upload(predictor: Predictor) -> None:
    with client_with(predictor, images=3, upload=0.5) as client:

        def refusal(status: int, path: str = "batch", **body: Any) -> str:
            answer = client.post(f"/api/{path}", **body)
            assert answer.status_code == status, answer.text
            return str(answer.json()["error"])

        assert "more than 3 images" in refusal(413, files=form_of([b"x"] * 4))
        assert "larger than 0.5 MiB" in refusal(413, files=form_of([bytes(200_000)] * 3))
        assert "come as a form" in refusal(415, content=png(picture()))
        assert "no file 'image'" in refusal(400, data={"classes": "a"}, files={"image": (None, b"x")})
        assert "between 1 and 100" in refusal(400, path="batch?top=0", files=form_of([b"x"]))
        assert "/api/batch" in refusal(400, path="predict", files=form_of([b"x"] * 2))
        info = client.get("/api/info").json()
        assert info["limits"]["images"] == 3
        assert info["batches"]["images"] == 0


def test_a_batch_costs_as_much_as_its_images_alone(predictor: Predictor) -> None:
    """Ten units: seven images and a megapixel more, then two, and none is left for the last of three."""
    with client_with(predictor, rate=10) as client:
        large = bomb(2000, 1000)
        first = client.post("/api/batch", files=form_of([large, *[b"no image"] * 6])).json()["results"]
        assert [result.get("status") for result in first] == [None, *[415] * 6]
        second = client.post("/api/batch", files=form_of([png(picture())] * 3))
        statuses = [result.get("status") for result in second.json()["results"]]
        assert statuses == [None, None, 429]
        assert second.json()["results"][2]["retry_after"] == 6
        assert client.post("/api/batch", files=form_of([b"x"])).status_code == 429


def test_once_the_units_are_spent_no_further_image_is_opened(
    predictor: Predictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    service, opened = Service(predictor, Limits(wait=0, rate=3)), list[bytes]()
    take = service.take
    monkeypatch.setattr(service, "take", lambda data, charge: opened.append(data) or take(data, charge))
    with TestClient(create_app(service), base_url=URL) as client:
        answer = client.post("/api/batch", files=form_of([png(picture())] * 20))
    statuses = [result.get("status") for result in answer.json()["results"]]
    assert statuses.count(None) == len(opened) == 3
    assert statuses.count(429) == 17


class Gate:
    """An image tower that counts the images under way, and goes on once it is open."""

    def __init__(self, service: Service) -> None:
        self.open, self.seen = threading.Event(), 0
        work = service.batches.work

        def blocked(images: Sequence[Tensor]) -> Sequence[Tensor]:
            self.seen += len(images)
            assert self.open.wait(LONG)
            return work(images)

        service.batches.work = blocked


def test_long_batches_let_other_requests_take_their_turn(predictor: Predictor) -> None:
    """While three clients wait with 64 images each, few of these stand before a single image."""
    service = Service(predictor, Limits(wait=0, rate=0, batch=5))
    gate = Gate(service)

    async def attack() -> None:
        async with client_of(service) as client:
            many = form_of([png(picture(seed)) for seed in range(64)])
            batches = [asyncio.ensure_future(client.post("/api/batch", files=many)) for _ in range(3)]
            await until(lambda: gate.seen + service.batches.waiting == 5)  # all that batches may have
            single = asyncio.ensure_future(client.post("/api/predict", content=png(picture())))
            await until(lambda: gate.seen + service.batches.waiting == 6)
            gate.open.set()
            assert (await single).status_code == 200
            assert service.batches.items < 3 * 64 / 2
            answers = await asyncio.gather(*batches)
            assert all("top" in row for answer in answers for row in answer.json()["results"])

    asyncio.run(attack())


def test_a_request_has_few_images_under_way(predictor: Predictor) -> None:
    service = Service(predictor, Limits(wait=0, rate=0, batch=16))
    gate = Gate(service)

    async def ask() -> None:
        async with client_of(service) as client:
            images = form_of([png(picture(seed)) for seed in range(13)])
            batch = asyncio.ensure_future(client.post("/api/batch", files=images))
            await until(lambda: gate.seen + service.batches.waiting == AT_ONCE)
            await asyncio.sleep(0.2)
            assert gate.seen + service.batches.waiting == AT_ONCE
            gate.open.set()
            assert (await batch).status_code == 200

    asyncio.run(ask())


def test_new_names_of_a_batch_hold_up_no_known_ones(
    predictor: Predictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = Blocked(predictor, monkeypatch)
    service = Service(predictor, Limits(wait=0, rate=0))

    async def ask() -> None:
        async with client_of(service) as client:
            images = form_of([png(picture(seed)) for seed in range(5)])
            new = asyncio.ensure_future(client.post("/api/batch", files=images, data={"classes": "a new, b"}))
            await until(encoder.begun.is_set)
            async with asyncio.timeout(LONG):
                assert (await client.post("/api/batch", files=images)).status_code == 200
            encoder.go.set()
            assert len((await new).json()["results"]) == 5

    asyncio.run(ask())
    assert encoder.encoded == [("a new", "b")]  # once for all images


def test_names_are_not_encoded_for_images_that_cannot_be_read(
    predictor: Predictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = Blocked(predictor, monkeypatch)
    encoder.go.set()
    with client_with(predictor) as client:
        rows = client.post("/api/batch", files=form_of([b"x"] * 3), data={"classes": "new"}).json()["results"]
    assert [row["status"] for row in rows] == [415] * 3
    assert encoder.encoded == []


def test_the_examples_of_the_documentation_have_the_form_of_answers(predictor: Predictor) -> None:
    with client_with(predictor) as client:
        single = client.post("/api/predict?top=1", content=png(picture())).json()
        images = form_of([png(picture()), b"words"])
        batch = client.post("/api/batch?top=1", files=images).json()
        maps = client.post("/api/attention?layer=1&head=0", content=png(picture())).json()
    assert set(single["top"][0]) == set(samples()["predict"]["answer"]["top"][0])
    for row, example in zip(batch["results"], samples()["batch"]["answer"]["results"], strict=True):
        assert set(row) == set(example)
    assert set(maps) == set(samples()["attention"]["answer"])
