"""The HTTP API without a network: answers, refusals with their status, token, host and rate."""

import io
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from dear.adapters.predictor import Predictor
from dear.backbone.clip import Clip
from dear.serving.limits import KINDS, Limits
from dear.serving.middleware import HEADERS
from dear.serving.service import Service
from tests.unit.serving.small import bomb, picture, png, small_predictor

pytest.importorskip("fastapi", reason="the extra `app` is not installed")
from fastapi.testclient import TestClient

from dear.serving.api import create_app

URL = "http://127.0.0.1"
LIMITS = Limits(upload=0.5, megapixels=40, wait=0)


@pytest.fixture
def predictor(small_clip: Clip) -> Predictor:
    return small_predictor(small_clip)


@pytest.fixture
def client(predictor: Predictor) -> Iterator[TestClient]:
    with TestClient(create_app(Service(predictor, LIMITS)), base_url=URL) as one:
        yield one


def refused(answer: Any, status: int) -> str:
    assert answer.status_code == status, answer.text
    assert set(answer.json()) == {"error", "kind"}
    return str(answer.json()["error"])


def test_a_prediction_is_the_predictors_own_in_both_forms(client: TestClient, predictor: Predictor) -> None:
    image = picture()
    [wanted] = predictor.predict([image], top=2)
    data = png(image)
    form = {"image": ("photo.png", data, "image/png")}
    for answer in (
        client.post("/api/predict?top=2", content=data),
        client.post("/api/predict?top=2", files=form),
    ):
        assert answer.status_code == 200
        got = answer.json()["top"]
        assert [one["name"] for one in got] == [one.name for one in wanted.top]
        for one, other in zip(got, wanted.top, strict=True):
            assert one["probability"] == pytest.approx(other.probability, abs=1e-6)
            assert one["evidence"] == pytest.approx(other.evidence, abs=1e-4)
            assert sum(one["evidence"].values()) == pytest.approx(one["logit"], abs=1e-4)
    names = {"red house, old", "blue tree"}
    quoted = '"red house, old", blue tree,'
    for request in (
        {"params": {"classes": quoted}, "content": data},
        {"files": form, "data": {"classes": quoted}},
    ):
        other = client.post("/api/predict", **request).json()  # type: ignore[arg-type]
        assert {candidate["name"] for candidate in other["top"]} == names


@pytest.mark.parametrize(
    ("data", "status", "words"),
    [
        (b"words in a file named .jpg", 415, "not an image"),
        (b"", 400, "empty"),
        (bomb(), 413, "60.0 megapixels"),
        (b"\0" * 600_000, 413, "larger than 0.5 MiB"),
        (png(picture())[:300], 422, "broken"),
    ],
)
def test_uploads_that_are_refused(client: TestClient, data: bytes, status: int, words: str) -> None:
    assert words in refused(client.post("/api/predict", content=data), status)
    if data:
        form = {"image": ("photo.jpg", data, "image/jpeg")}
        assert words in refused(client.post("/api/predict", files=form), status)


@pytest.mark.parametrize("length", ["600000000", "9" * 20, "9" * 4000])
def test_a_stated_length_is_refused_before_the_body(client: TestClient, length: str) -> None:
    answer = client.post("/api/predict", content=b"x", headers={"Content-Length": length})
    assert "larger than 0.5 MiB" in refused(answer, 413)


def test_a_long_upload_without_a_length_is_cut_off(client: TestClient) -> None:
    def chunks() -> Iterator[bytes]:
        for _ in range(100):
            yield b"\0" * 10_000

    assert "larger" in refused(client.post("/api/predict", content=chunks()), 413)


def test_questions_that_make_no_sense(client: TestClient) -> None:
    data = png(picture())
    for path in ("predict?tops=2", "batch?top=1&tops=2"):
        message = refused(client.post(f"/api/{path}", files={"image": data}), 400)
        assert message == "unknown parameter 'tops'. Did you mean 'top'? Known parameters: top, classes."
    assert "unknown parameter 'x'" in refused(client.get("/api/info?x=1"), 400)
    misspelt = client.post("/api/predict", files={"image": data}, data={"klasses": "a,b"})
    assert "unknown field 'klasses'. Did you mean 'classes'?" in refused(misspelt, 400)
    assert "not a comma-separated list" in refused(client.post('/api/predict?classes="a', content=data), 400)
    assert "between 1 and 100" in refused(client.post("/api/predict?top=0", content=data), 400)
    assert "'house' is listed twice" in refused(
        client.post("/api/predict?classes=house,house", content=data), 400
    )
    assert "no index" in refused(client.post("/api/neighbours", content=data), 404)
    assert "layer 9 does not exist" in refused(
        client.post("/api/attention?layer=9&head=0", content=data), 400
    )
    assert "not in its field 'image'" in refused(client.post("/api/predict", files={"photo": b"x"}), 400)
    assert "no file 'image'" in refused(client.post("/api/predict", files={"image": (None, b"x")}), 400)


FORM = {"content-type": "multipart/form-data; boundary=line"}


@pytest.mark.parametrize(
    ("kind", "path", "given"),
    [
        ("parameter", "predict?top=0", {"content": png(picture())}),
        ("parameter", "predict?top=few", {"content": png(picture())}),
        ("parameter", "predict?tops=1", {"content": png(picture())}),
        ("parameter", "predict?classes=a,a", {"content": png(picture())}),
        ("parameter", "attention?layer=9&head=0", {"content": png(picture())}),
        ("form", "predict", {"files": {"photo": b"x"}}),
        ("form", "batch", {"content": b"x"}),
        ("image", "predict", {"content": b""}),
        ("image", "predict", {"content": b"words"}),
        ("image", "predict", {"content": png(picture())[:300]}),
        ("too-large", "predict", {"content": b"x" * 600_000}),
        ("too-large", "predict", {"content": bomb()}),
        ("not-found", "neighbours", {"content": png(picture())}),
        ("not-found", "nothing", {}),
        ("origin", "predict", {"headers": {"origin": "http://evil.example"}}),
    ],
)
def test_the_kind_of_a_refusal_is_a_word_for_programs(
    client: TestClient, kind: str, path: str, given: dict[str, Any]
) -> None:
    assert client.post(f"/api/{path}", **given).json()["kind"] == kind


def test_the_guide_names_every_kind() -> None:
    guide = Path(__file__).parents[3].joinpath("docs", "use.md").read_text(encoding="utf-8")
    [sentence] = [line for line in guide.splitlines() if line.startswith("A refusal is")]
    assert {*re.findall(r"`([a-z-]+)`", sentence)} == {"kind", "form", *KINDS.values()}


@pytest.mark.parametrize(
    ("method", "path", "given", "status", "words"),
    [
        ("POST", "predict?top=abc", {"content": b"x"}, 422, "top: "),
        ("POST", "attention?head=1", {"content": b"x"}, 422, "layer: "),
        ("POST", "neighbours?thumbnails=maybe", {"content": b"x"}, 422, "thumbnails: "),
        ("GET", "nothing", {}, 404, "nothing at /api/nothing"),
        ("GET", "predict", {}, 405, "use POST"),
        ("DELETE", "info", {}, 405, "use GET"),
        ("POST", "predict", {"files": [("image", b"x"), ("image", b"y")]}, 400, "more than one file"),
        ("POST", "predict", {"content": b"--line\r\nno form", "headers": FORM}, 400, "multipart"),
        (
            "POST",
            "predict",
            {"content": b"", "headers": {"content-type": "multipart/form-data"}},
            400,
            "bound",
        ),
    ],
)
def test_refusals_of_the_framework(
    client: TestClient, method: str, path: str, given: dict[str, Any], status: int, words: str
) -> None:
    assert words in refused(client.request(method, f"/api/{path}", **given), status)
    assert "nothing at /nothing" in refused(client.get("/nothing"), 404)


def test_a_crash_is_told_without_what_is_inside(
    predictor: Predictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(*_: object) -> None:
        raise ValueError("inside")

    service = Service(predictor, LIMITS)
    monkeypatch.setattr(service, "classify", crash)
    with TestClient(create_app(service), base_url=URL, raise_server_exceptions=False) as client:
        answer = client.post("/api/predict", content=png(picture()))
        assert "inside" not in refused(answer, 500)
        assert {*HEADERS.items()} <= {*answer.headers.items()}
        assert client.get("/api/info").status_code == 200


def test_what_a_form_says_reaches_no_log(client: TestClient, caplog: pytest.LogCaptureFixture) -> None:
    lines = ["--line", 'Content-Disposition: form-data; name="image"; filename="a"']
    content = "\r\n".join([*lines, "Content-Transfer-Encoding: \x1b[31m", "", "x", "--line--", ""])
    assert client.post("/api/predict", content=content.encode(), headers=FORM).status_code == 415
    bare = {"content-type": "multipart/form-data"}
    assert client.post("/api/predict", content=b"", headers=bare).status_code == 400
    assert not [entry for entry in caplog.records if entry.name.startswith("python_multipart")]


def test_a_forms_type_is_read_in_any_case(client: TestClient) -> None:
    form = client.build_request("POST", "/api/predict", files={"image": png(picture())})
    kind = form.headers["content-type"].replace("multipart/form-data", "Multipart/Form-Data")
    answer = client.post("/api/predict", content=form.read(), headers={"content-type": kind})
    assert answer.status_code == 200, answer.text


def test_attention_and_roles(client: TestClient) -> None:
    data = png(picture())
    maps = client.post("/api/attention?layer=4&head=1", content=data).json()["maps"]
    assert {name: (len(rows), len(rows[0])) for name, rows in maps.items()} == dict.fromkeys(
        ["class", "color", "object"], (5, 5)
    )
    shown = client.post("/api/attention?layer=4&head=1&token=color&png=true", content=data)
    assert shown.headers["content-type"] == "image/png"
    with Image.open(io.BytesIO(shown.content)) as image:
        assert image.size == (448, 448)
    assert "no token 'color': it has class" in refused(
        client.post("/api/attention?layer=1&head=1&token=color&png=true", content=data), 400
    )
    assert client.get("/api/roles").json()["attributes"] == ["color", "object"]
    info = client.get("/api/info").json()
    assert (info["features"], info["layers"], info["heads"]) == (["class", "color", "object"], 5, 3)


@pytest.mark.parametrize(("model", "caution"), [("tiny", "photographs mean nothing"), ("ViT-B-16", "")])
def test_a_bundle_of_the_tiny_clip_is_cautioned_of(predictor: Predictor, model: str, caution: str) -> None:
    predictor.bundle = replace(predictor.bundle, model=model)
    with TestClient(create_app(Service(predictor, LIMITS)), base_url=URL) as client:
        told = client.get("/api/info").json()["caution"]
    assert caution in (told or "")
    assert bool(told) == (model == "tiny")


def test_a_token_is_needed_where_one_is_set(predictor: Predictor) -> None:
    data = png(picture())
    service = Service(predictor, LIMITS)
    with TestClient(create_app(service, token="s3cret"), base_url=URL) as client:
        assert "token" in refused(client.post("/api/predict", content=data), 401)
        wrong = {"authorization": "Bearer other"}
        assert "token" in refused(client.get("/api/info", headers=wrong), 401)
        right = {"authorization": "Bearer s3cret"}
        assert client.post("/api/predict", content=data, headers=right).status_code == 200
        door = client.get("/")
        assert door.status_code == 401
        assert "<form>" in door.text
        assert "Wrong token" in client.get("/?token=other").text
        entered = client.get("/?token=s3cret", follow_redirects=False)
        assert entered.status_code == 303
        assert "HttpOnly" in entered.headers["set-cookie"]
        assert client.get("/api/info").status_code == 200  # by the cookie
        client.cookies.clear()
        others = "a name=of another server; dear_token=s3cret"
        assert client.get("/api/info", headers={"cookie": others}).status_code == 200
        for cookie in ("dear_tokens=s3cret", "dear_token=other; dear_token=s3cret", "dear_token", ";=;"):
            assert client.get("/api/info", headers={"cookie": cookie}).status_code == 401


def test_no_cookie_reaches_the_framework(predictor: Predictor, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its parser takes time quadratic in the escapes of a cookie, for every route."""

    def parse(text: str) -> dict[str, str]:
        raise AssertionError(f"{len(text)} characters are parsed")

    monkeypatch.setattr("starlette.requests.cookie_parser", parse)
    escapes = 'dear="' + "\\\\" * 7000 + '"'
    with TestClient(create_app(Service(predictor, LIMITS), token="s3cret"), base_url=URL) as client:
        assert client.get("/health", headers={"cookie": escapes}).status_code == 200
        entered = {"cookie": f"{escapes}; dear_token=s3cret"}
        assert client.post("/api/predict", content=png(picture()), headers=entered).status_code == 200
        assert "fewer cookies" in refused(client.get("/health", headers={"cookie": escapes * 3}), 431)


def test_wrong_tokens_are_limited_wherever_they_stand(predictor: Predictor) -> None:
    def wrong(client: TestClient, place: str, number: int) -> Any:
        given = f"wrong{number}"
        if place == "address":
            return client.get("/", params={"token": given})
        header = {"header": ("authorization", f"Bearer {given}"), "cookie": ("cookie", f"dear_token={given}")}
        return client.get("/api/info", headers=dict([header[place]]))

    for place in ("header", "cookie", "address"):
        service = Service(predictor, Limits(rate=5, wait=0))
        with TestClient(create_app(service, token="s3cret"), base_url=URL) as client:
            got = [wrong(client, place, number).status_code for number in range(7)]
            assert got == [401] * 5 + [429] * 2
            # Else a guess that is right would be told from one that is wrong.
            for scheme in ("Bearer", "bearer"):
                answer = client.get("/api/info", headers={"authorization": f"{scheme} s3cret"})
                assert "5 units of work per minute" in refused(answer, 429)
            assert client.get("/").status_code == 401  # the door asks without a token


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER", "Bearer  "])
def test_a_tokens_scheme_in_any_case(predictor: Predictor, scheme: str) -> None:
    with TestClient(create_app(Service(predictor, LIMITS), token="s3cret"), base_url=URL) as client:
        assert client.get("/api/info", headers={"authorization": f"{scheme} s3cret"}).status_code == 200
        assert client.get("/api/info", headers={"authorization": "Basic s3cret"}).status_code == 401
        assert client.get("/api/info", headers={"authorization": "s3cret"}).status_code == 401


@pytest.mark.parametrize(
    ("origin", "host", "status"),
    [
        ("http://127.0.0.1", "127.0.0.1", 200),
        ("http://localhost:7860", "localhost:7860", 200),
        ("http://LOCALHOST:7860", "localhost:7860", 200),
        ("https://clip.example", "clip.example", 200),  # a proxy with TLS that hands the name on
        ("https://told.example", "127.0.0.1:7860", 200),  # and one that does not
        ("http://evil.example", "127.0.0.1:7860", 403),
        ("http://localhost:9999", "localhost:7860", 403),  # another server of this machine
        ("http://127.0.0.1", "localhost", 403),
        ("http://127.0.0.1:7860.evil.example", "127.0.0.1:7860", 403),
        ("http://told.example", "127.0.0.1:7860", 403),
        ("null", "127.0.0.1:7860", 403),
        ("file://127.0.0.1:7860", "127.0.0.1:7860", 403),
    ],
)
def test_a_web_page_of_another_server_is_refused(
    predictor: Predictor, origin: str, host: str, status: int
) -> None:
    app = create_app(Service(predictor, LIMITS), hosts=None, origin="https://told.example")
    with TestClient(app, base_url=URL) as client:
        headers = {"origin": origin, "host": host}
        assert client.post("/api/predict", content=png(picture()), headers=headers).status_code == status
        answer = client.get("/api/info", headers=headers)
        assert answer.status_code == status
        assert not any(name.startswith("access-control") for name in answer.headers)


def test_class_names_are_bounded(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    data = png(picture())
    names = ",".join(f"house{number}" for number in range(1001))
    query = {"params": {"classes": names}, "content": data}
    form = {"files": {"image": data}, "data": {"classes": names}}
    for given in (query, form):
        told = refused(client.post("/api/predict", **given), 413)  # type: ignore[arg-type]
        assert "1,001 class names" in told
        assert "DEAR_LIMIT_REQUEST_CLASSES" in told
    long = refused(client.post("/api/predict", params={"classes": "h" * 1001 + ",b"}, content=data), 413)
    assert "1,001 characters of a class name" in long
    monkeypatch.setenv("DEAR_LIMIT_REQUEST_CLASSES", "1001")
    answer = client.post("/api/predict?top=1", files={"image": data}, data={"classes": names})
    assert answer.status_code == 200


def test_a_form_may_name_the_classes(client: TestClient) -> None:
    form = {"files": {"image": png(picture())}, "data": {"classes": "red house, blue tree"}}
    found = client.post("/api/predict", **form).json()["top"]  # type: ignore[arg-type]
    assert {one["name"] for one in found} == {"red house", "blue tree"}
    for names in ([f"field{number}" for number in range(9)], ["same"] * 9):
        many = [("image", ("x", b"x")), *((name, (None, b"x")) for name in names)]
        assert "more than 8 fields" in refused(client.post("/api/predict", files=many), 400)


@pytest.mark.parametrize(
    ("host", "status"),
    [
        *((host, 200) for host in ("localhost", "LOCALHOST:7860", "127.0.0.1", "[::1]", "[::1]:7860")),
        *((host, 421) for host in ("[localhost]", "localhost]", "[localhost", "::1", "[::1", "[::1]evil")),
        *((host, 421) for host in ("localhost:evil.example", "127.0.0.1:80@evil", "evil@127.0.0.1:80")),
        *((host, 421) for host in ("", ":80", "localhost:", "localhost:1:2", "localhost/", "[127.0.0.1]")),
        *((host, 421) for host in ("localhost.evil.example", "localhost:123456", " localhost", "localhost,")),
    ],
)
def test_only_whole_host_names_count(predictor: Predictor, host: str, status: int) -> None:
    with TestClient(create_app(Service(predictor, LIMITS)), base_url=URL) as client:
        assert client.get("/health", headers={"host": host}).status_code == status


def test_other_hosts_and_too_many_requests(predictor: Predictor) -> None:
    data = png(picture())
    with TestClient(create_app(Service(predictor, Limits(rate=2, wait=0))), base_url=URL) as client:
        answer = client.get("/api/info", headers={"host": "evil.example"})
        assert "only answers to localhost" in refused(answer, 421)
        assert client.get("/api/info", headers={"host": "[::1]:7860"}).status_code == 200
        for _ in range(2):
            assert client.post("/api/predict", content=data).status_code == 200
        answer = client.post("/api/predict", content=data)
        assert "2 units of work per minute" in refused(answer, 429)
        assert answer.headers["retry-after"] == "30"
        assert client.get("/api/info").status_code == 200
        assert "default-src 'none'" in client.get("/api/info").headers["content-security-policy"]
