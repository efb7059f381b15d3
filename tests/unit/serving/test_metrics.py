"""Metrics and the access log: what they count, and that clients choose none of their words."""

import logging
import re
from collections.abc import Iterator

import pytest

from dear.backbone.clip import Clip
from dear.serving.limits import Limits
from dear.serving.service import Service
from tests.unit.serving.small import picture, png, small_predictor

pytest.importorskip("fastapi", reason="the extra `app` is not installed")
pytest.importorskip("prometheus_client", reason="the extra `app` is not installed")
from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families

from dear.serving.api import create_app
from dear.serving.metrics import METHODS, OTHER

URL = "http://127.0.0.1"
LINE = re.compile(r"(GET|POST|PUT|OPTIONS|other) (/[a-z/.{}]*|other) \d{3} \d+ ms")


@pytest.fixture
def service(small_clip: Clip) -> Service:
    return Service(small_predictor(small_clip), Limits(wait=0))


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    with caplog.at_level(logging.INFO, "dear.access"):
        yield caplog


def requests(log: pytest.LogCaptureFixture) -> list[str]:
    """The lines of the log without the time taken."""
    lines = [record.getMessage() for record in log.records if record.name == "dear.access"]
    assert all(LINE.fullmatch(line) for line in lines)
    return [line.rsplit(" ", 2)[0] for line in lines]


def values(client: TestClient) -> dict[tuple[str, ...], float]:
    """Each sample by its name and its labels' values."""
    answer = client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


def test_requests_and_images_are_counted(service: Service) -> None:
    with TestClient(create_app(service), base_url=URL) as client:
        for _ in range(3):
            client.post("/api/predict", content=png(picture()))
        client.post("/api/predict", content=b"words")
        client.get("/api/predict")
        client.get("/api/examples/7")
        found = values(client)
    count = {labels[1:]: value for labels, value in found.items() if labels[0] == "dear_requests_total"}
    assert count == {
        ("POST", "/api/predict", "200"): 3,
        ("POST", "/api/predict", "415"): 1,
        ("GET", "/api/predict", "405"): 1,
        ("GET", "/api/examples/{number}", "404"): 1,
    }
    assert found["dear_images_total",] == service.batches.items == 3
    assert found["dear_request_seconds_count", "/api/predict"] == 5
    assert found["dear_requests_running",] == 1  # the question itself
    assert found["dear_images_waiting",] == 0


def test_clients_choose_no_label(service: Service) -> None:
    """Not by paths, methods, queries or hosts, with or without the token."""
    app = create_app(service, token="s3cret")
    with TestClient(app, base_url=URL, headers={"authorization": "Bearer s3cret"}) as client:
        client.get("/api/info")
        before = len(values(client))
        for number in range(50):
            client.get(f"/wild{number}/%0A{number}")
            client.get(f"/api/info?x={number}", headers={"authorization": f"Bearer {number}"})
            client.request(f"WILD{number}", "/api/info")
            client.get("/api/info", headers={"host": f"host{number}"})
            client.get(f"/api/examples/{number}")
        found = values(client)
    assert not any("wild" in word.lower() for labels in found for word in labels)
    labelled = [labels for labels in found if labels[0] == "dear_requests_total"]
    assert {labels[1] for labels in labelled} <= METHODS | {OTHER}
    # At most six pairs of a route and a status came new; each has two samples, each route has twelve.
    assert len(found) - before <= 60


def test_metrics_need_the_token(service: Service) -> None:
    with TestClient(create_app(service, token="s3cret"), base_url=URL) as client:
        assert client.get("/metrics").status_code == 401


def test_the_log_has_a_line_a_request_without_what_clients_chose(
    service: Service, log: pytest.LogCaptureFixture
) -> None:
    app = create_app(service, token="s3cret")
    with TestClient(app, base_url=URL, headers={"authorization": "Bearer s3cret"}) as client:
        client.get("/health?secret=1")
        client.get("/api/examples/3")
        client.get("/a%0Ab%1B%5B31m")
        client.request("WI-LD", "/api/info")
        client.post("/api/predict", files={"image": ("name\x1b[31m.png", png(picture()))})
        client.get("/api/info", headers={"host": "evil.example"})
        client.get("/api/info", headers={"authorization": "Bearer other"})
    assert requests(log) == [
        "GET /health 200",
        "GET /api/examples/{number} 404",
        "GET other 404",
        "other /api/info 405",
        "POST /api/predict 200",
        "GET /api/info 421",
        "GET /api/info 401",
    ]


def test_a_crash_is_a_line_and_goes_on_to_the_server(
    service: Service, log: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(*_: object) -> None:
        raise ValueError("inside")

    monkeypatch.setattr(service, "classify", crash)
    with TestClient(create_app(service), base_url=URL) as client, pytest.raises(ValueError, match="inside"):
        client.post("/api/predict", content=png(picture()))  # goes on to the server, whose log describes it
    assert requests(log) == ["POST /api/predict 500"]
