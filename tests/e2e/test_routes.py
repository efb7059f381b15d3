"""Each route of `dear serve`, of a process with a bundle on the tiny CLIP: its answers and its refusals."""

import base64
import hashlib
import io
import json
import re
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import dear
from dear.adapters.identity import short_identity
from tests.e2e.conftest import Start
from tests.helpers.server import bomb, picture, png

pytest.importorskip("uvicorn", reason="the extra `app` is not installed")
from dear.serving.app import FILES
from dear.serving.review import REVIEW_FILES

httpx = pytest.importorskip("httpx", reason="the extra `dev` is not installed")
STATIC = Path(dear.__file__).parent / "serving" / "static"


@pytest.fixture(scope="module")
def client(start_server: Start) -> Iterator[Any]:
    """A client of a server with low limits and without a token."""
    limits = ("--limits.upload", "1", "--limits.megapixels", "2")
    address = start_server(*limits)[1]
    with httpx.Client(base_url=address, trust_env=False, timeout=60) as client:
        yield client


@pytest.fixture(scope="module")
def predictor(served: Path) -> dear.Predictor:
    return dear.Predictor(served / "my-classifier")


def form(*images: bytes) -> list[tuple[str, tuple[str, bytes]]]:
    return [("image", ("a.png", image)) for image in images]


def test_health_and_info(client: Any, predictor: dear.Predictor) -> None:
    health = client.get("/health")
    assert (health.status_code, health.json()) == (200, {"status": "ok"})
    info = client.get("/api/info").json()
    assert info["name"] == "my-classifier"
    assert info["method"] == predictor.bundle.method
    assert info["weights"]["model"] == "tiny"
    assert info["caution"]
    assert info["classes"] == [*predictor.classes]
    assert info["features"] == [*predictor.features]
    assert {*info["attributes"]} < {*predictor.features}
    assert (info["layers"], info["heads"]) == (predictor.clip.image.depth, predictor.clip.image.heads)
    assert info["index"] == {"rows": 3, "features": [*predictor.features]}
    assert info["roles"] is True
    limits = {"upload": 1, "megapixels": 2, "images": 64, "batch": 16}
    assert limits.items() <= info["limits"].items()
    assert {*info["batches"]} == {"images", "batches", "largest"}
    scores = predictor.bundle.scores
    assert scores is not None
    assert info["tested"]["images"] == scores.images
    assert info["tested"]["interval"] == [*(scores.interval or ())]


def test_predict(client: Any, predictor: dear.Predictor, served: Path, cup: bytes) -> None:
    [expected] = predictor.predict([served / "cup.jpg"], top=2)
    answers = [
        client.post("/api/predict?top=2", content=cup),
        client.post("/api/predict?top=2", files=form(cup)),
        client.post("/api/predict", params={"top": 2}, content=cup, headers={"content-type": "image/png"}),
    ]
    for answer in answers:
        assert answer.headers["content-type"] == "application/json"
        assert answer.json() == {
            "top": [*map(asdict, expected.top)],
            "none_of_these": expected.none_of_these,
            "bundle": short_identity(predictor.bundle),
        }


def test_other_classes(client: Any, predictor: dear.Predictor, served: Path, cup: bytes) -> None:
    """A star stands for the bundle's own."""
    for text, names in (
        ('a red car,"cup, <b>blue</b>",sea', ["a red car", "cup, <b>blue</b>", "sea"]),
        ("*, sea", [*predictor.classes, "sea"]),
    ):
        [expected] = predictor.predict([served / "cup.jpg"], top=100, classes=names)
        for sent in (
            {"params": {"classes": text, "top": 100}, "content": cup},
            {"params": {"top": 100}, "data": {"classes": text}, "files": form(cup)},
        ):
            answer = client.post("/api/predict", **sent)
            scores = {row["name"]: row["logit"] for row in answer.json()["top"]}
            assert scores == pytest.approx({one.name: one.logit for one in expected.top}, abs=1e-4)
            assert answer.headers["x-content-type-options"] == "nosniff"


def test_batch(client: Any, cup: bytes, served: Path) -> None:
    tree = (served / "tree.jpg").read_bytes()
    answer = client.post("/api/batch?top=1", files=form(cup, b"some text", tree))
    first, second, third = answer.json()["results"]
    assert (second["kind"], second["status"]) == ("image", 415)
    assert second["error"]
    for row, image in ((first, cup), (third, tree)):
        [alone] = client.post("/api/predict?top=1", content=image).json()["top"]
        [label] = row["top"]
        assert label["name"] == alone["name"]
        assert label["logit"] == pytest.approx(alone["logit"], abs=1e-4)
    [renamed] = client.post("/api/batch", data={"classes": "sea"}, files=form(cup)).json()["results"]
    assert [label["name"] for label in renamed["top"]] == ["sea"]


def test_requests_at_once_have_their_own_answers(client: Any, served: Path) -> None:
    images = [(served / f"photos/{number}.png").read_bytes() for number in range(3)]
    alone = [client.post("/api/predict?top=1", content=image).json()["top"][0] for image in images]
    with ThreadPoolExecutor(24) as threads:
        answers = [*threads.map(lambda image: client.post("/api/predict?top=1", content=image), images * 8)]
    for answer, expected in zip(answers, alone * 8, strict=True):
        assert answer.status_code == 200
        [label] = answer.json()["top"]
        assert label["name"] == expected["name"]
        assert label["logit"] == pytest.approx(expected["logit"], abs=1e-4)


def test_neighbors(client: Any, predictor: dear.Predictor, served: Path, cup: bytes) -> None:
    features = predictor.encode(served / "photos")
    at = {name: number for number, name in enumerate(predictor.features)}
    attribute = predictor.features[1]
    cosines = {name: features[1:, number] @ features[0, number] for name, number in at.items()}
    mixed = (cosines["class"] - 0.5 * cosines[attribute]) / 1.5
    parameters = {"by": f"class,{attribute}", "weights": "1,-0.5", "count": 8, "thumbnails": True}
    rows = client.post("/api/neighbors", params=parameters, content=cup).json()["neighbors"]
    assert [row["score"] for row in rows] == pytest.approx(sorted(mixed.tolist(), reverse=True), abs=2e-3)
    assert {row["path"] for row in rows} == {"1.png", "2.png"}  # the image itself is left out
    for row in rows:
        content = (served / "photos" / row["path"]).read_bytes()
        number = int(row["path"][0]) - 1
        assert {*row} == {"path", "score", "by", "copies", "more_copies", "label", "sha256", "thumbnail"}
        assert row["sha256"] == hashlib.sha256(content).hexdigest()
        assert (row["copies"], row["more_copies"]) == ([], 0)
        assert row["by"] == pytest.approx(
            {name: float(cosines[name][number]) for name in ("class", attribute)}, abs=2e-3
        )
        with Image.open(io.BytesIO(base64.b64decode(row["thumbnail"]))) as thumbnail:
            assert (thumbnail.format, min(thumbnail.size) <= 160) == ("PNG", True)
    [row] = client.post("/api/neighbors?count=1", files=form(cup)).json()["neighbors"]
    assert "thumbnail" not in row
    assert row["score"] == pytest.approx(float(cosines["class"].max()), abs=2e-3)


def test_attention(client: Any, predictor: dear.Predictor, cup: bytes) -> None:
    layer = predictor.clip.image.depth
    maps = client.post(f"/api/attention?layer={layer}&head=0", content=cup).json()["maps"]
    assert "class" in maps
    assert len(maps["class"]) == len(maps["class"][0]) > 1
    sums = {token: sum(map(sum, grid)) for token, grid in maps.items()}
    assert all(0 < total <= 1.0001 for total in sums.values())
    picture = client.post(f"/api/attention?layer={layer}&head=0&png=true", files=form(cup))
    assert picture.headers["content-type"] == "image/png"
    assert float(picture.headers["attention-on-patches"]) == pytest.approx(sums["class"], abs=1e-4)
    with Image.open(io.BytesIO(picture.content)) as image:
        assert image.format == "PNG"


def test_roles(client: Any, predictor: dear.Predictor) -> None:
    assert client.get("/api/roles").json() == json.loads(json.dumps(predictor.bundle.roles.to_json()))


def test_metrics_and_schema(client: Any, cup: bytes) -> None:
    client.post("/api/predict", content=cup)
    client.post("/api/predict", content=b"")
    metrics = client.get("/metrics")
    assert metrics.headers["content-type"].startswith("text/plain; version=")
    values = dict(re.findall(r"^(dear_\S+) (\S+)$", metrics.text, flags=re.MULTILINE))
    labels = 'dear_http_requests_total{{handler="/api/predict",status="{}"}}'
    assert float(values[labels.format(200)]) >= 1
    assert float(values[labels.format(400)]) >= 1
    assert float(values['dear_http_request_duration_seconds_count{handler="/api/predict"}']) >= 2
    assert float(values["dear_images_total"]) >= float(values["dear_batches_total"]) >= 1
    schema = client.get("/openapi.json").json()
    assert schema["openapi"].startswith("3.1")
    body = schema["paths"]["/api/predict"]["post"]["requestBody"]["content"]
    assert {*body} == {"image/*", "multipart/form-data"}
    docs = client.get("/docs")
    assert (docs.status_code, docs.headers["content-type"]) == (200, "text/html; charset=utf-8")


def test_the_page_has_only_its_own_files(client: Any) -> None:
    for path, name in {**FILES, **REVIEW_FILES}.items():
        answer = client.get(path)
        assert answer.content == (STATIC / name).read_bytes()
        rules = dict(rule.split(" ", 1) for rule in answer.headers["content-security-policy"].split("; "))
        assert rules["default-src"] == "'none'"
        assert rules["script-src"] == rules["style-src"] == rules["connect-src"] == "'self'"
        assert answer.headers["x-content-type-options"] == "nosniff"
    secret = STATIC.parent / "__init__.py"
    traversals = f"/page.css/..{secret}", f"/%2e%2e/%2e%2e{secret}", f"/?file={secret}"
    for path in (f"{secret}", "/index.html", *traversals):
        answer = client.get(path)
        assert answer.status_code in (400, 404) or answer.content == (STATIC / "index.html").read_bytes()


NAMES = ",".join(f"n{number}" for number in range(1001))
NO_BOUNDARY, FOREIGN = {"content-type": "multipart/form-data"}, {"origin": "http://x.example"}
REFUSALS = {
    "empty": ("predict", {"content": b""}, 400, "image"),
    "no image": ("predict", {"content": b"some text"}, 415, "image"),
    "broken": ("predict", {"content": png(picture())[:500]}, 422, "image"),
    "a text field": ("predict", {"files": {"image": (None, "/etc/hostname")}}, 400, "form"),
    "no form": ("predict", {"content": b"x", "headers": NO_BOUNDARY}, 400, "form"),
    "no field": ("predict", {"files": {"other": ("a.png", b"x")}}, 400, "form"),
    "two images": ("predict", {"files": form(b"x", b"x")}, 400, "form"),
    "pixels": ("predict", {"content": bomb()}, 413, "too-large"),
    "upload": ("predict", {"content": b"x" * 2**21}, 413, "too-large"),
    "form": ("predict", {"files": form(b"x" * 2**21)}, 413, "too-large"),
    "chunked": ("predict", {"content": iter([b"x" * 2**20] * 2)}, 413, "too-large"),
    "images": ("batch", {"files": form(*[b"x"] * 65)}, 413, "too-large"),
    "no batch": ("batch", {"content": b"x"}, 415, "form"),
    "names": ("predict?top=1", {"data": {"classes": NAMES}, "files": form(b"PNG")}, 413, "too-large"),
    "name": ("predict?classes=" + "x" * 1001, {"content": b"PNG"}, 413, "too-large"),
    "text": ("predict", {"data": {"classes": "x" * 50_001}, "files": form(b"PNG")}, 413, "too-large"),
    "name twice": ("predict?classes=a,a", {"content": b"PNG"}, 400, "parameter"),
    "top": ("predict?top=0", {"content": b"PNG"}, None, "parameter"),
    "no number": ("predict?top=x", {"content": b"PNG"}, 422, "parameter"),
    "unknown parameter": ("predict?tops=1", {"content": b"PNG"}, None, "parameter"),
    "unknown feature": ("neighbors?by=nothing", {"content": b"PNG"}, 400, "parameter"),
    "weights": ("neighbors?weights=x", {"content": b"PNG"}, 400, "parameter"),
    "more weights": ("neighbors?by=class&weights=1,2", {"content": b"PNG"}, 400, "parameter"),
    "no weight": ("neighbors?by=class&weights=nan", {"content": b"PNG"}, 400, "parameter"),
    "no layer": ("attention?layer=99&head=0", {"content": b"PNG"}, 400, "parameter"),
    "no head": ("attention?layer=1", {"content": b"PNG"}, 422, "parameter"),
    "no token": ("attention?layer=1&head=0&token=x&png=true", {"content": b"PNG"}, 400, "parameter"),
    "no route": ("nothing", {"content": b"x"}, 404, "not-found"),
    "foreign page": ("predict", {"content": b"PNG", "headers": FOREIGN}, 403, "origin"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_refusals(client: Any, cup: bytes, case: str) -> None:
    path, sent, status, kind = REFUSALS[case]
    if sent.get("content") == b"PNG":
        sent = sent | {"content": cup}
    if sent.get("files") == form(b"PNG"):
        sent = sent | {"files": form(cup)}
    answer = client.post(f"/api/{path}", **sent)
    assert answer.status_code == status if status else answer.status_code in (400, 422)
    assert {*answer.json()} == {"error", "kind"}
    assert answer.json()["kind"] == kind
    assert str(STATIC.parent) not in answer.text


def test_unknown_gets_are_refused(client: Any) -> None:
    for path, status in (("/nothing", 404), ("/api/predict", 405)):
        answer = client.get(path)
        assert (answer.status_code, answer.json()["kind"]) == (status, "not-found")


def test_other_hosts_are_refused(client: Any, cup: bytes) -> None:
    for host in ("rebound.example", "127.0.0.1.example:80", "[::2]", "a b"):
        answer = client.post("/api/predict", content=cup, headers={"host": host})
        assert answer.status_code in (400, 421)
        assert "top" not in answer.text
    assert client.get("/health", headers={"host": "localhost"}).status_code == 200


def test_a_cut_connection_stops_nothing(client: Any, cup: bytes) -> None:
    head = f"POST /api/predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(cup)}\r\n\r\n".encode()
    for sent in (head[:20], head + cup[:50], head + cup, b"\0\1 nothing\r\n\r\n"):
        with socket.create_connection((client.base_url.host, client.base_url.port), 30) as opened:
            opened.sendall(sent)
    assert client.post("/api/predict", content=cup).status_code == 200
