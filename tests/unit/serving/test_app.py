"""The API without a network: who may ask, what is counted and refused, and that no request breaks it."""

import json
import re
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dear.adapters.predictor import Predictor
from dear.backbone.clip import Clip
from dear.serving.limits import Limits
from dear.serving.service import Service
from tests.conftest import small_clip_of
from tests.helpers.bundles import small_predictor
from tests.helpers.server import picture, png, serving

pytest.importorskip("fastapi", reason="the extra `app` is not installed")
from fastapi.testclient import TestClient

from dear.serving.app import create_app

URL, LIMITS = "http://127.0.0.1", Limits()
ROOT = Path(__file__).parents[3]
GUIDE = (ROOT / "docs" / "serve.md").read_text(encoding="utf-8")
PNG = png(picture())


@pytest.fixture
def predictor(small_clip: Clip) -> Predictor:
    return small_predictor(small_clip)


Serve = Callable[..., TestClient]


@pytest.fixture
def serve(predictor: Predictor) -> Iterator[Serve]:
    """``serve(limits, **options)``: a client of a server."""
    with ExitStack() as stack:

        def serve(limits: Limits = LIMITS, **options: Any) -> TestClient:
            app = create_app(Service(predictor, limits), **options)
            return stack.enter_context(TestClient(app, base_url=URL, raise_server_exceptions=False))

        yield serve


FORM = b'--b\r\nContent-Disposition: form-data; name="image"; filename="x"\r\n\r\n' + PNG + b"\r\n--b--\r\n"
TEXT = st.text(max_size=60)
NUMBER = st.integers(-(2**70), 2**70).map(str) | st.floats().map(str) | TEXT
ROUTES = st.sampled_from(["predict", "batch", "neighbors", "attention", "info", "roles", "x"])
NAMES = "top classes fusion decoupled layer head token png by weights count x"
PARAMETERS = st.dictionaries(
    st.sampled_from(NAMES.split()),
    NUMBER | st.lists(TEXT, max_size=4).map(",".join),
    max_size=4,
)


@st.composite
def mutated(draw: st.DrawFn, content: bytes = PNG) -> bytes:
    """A picture of which a stretch is removed, repeated or replaced."""
    start, end = sorted(draw(st.tuples(*2 * [st.integers(0, len(content))])))
    new = draw(st.sampled_from([b"", 3 * content[start:end]]) | st.binary(max_size=20))
    return content[:start] + new + content[end:]


FILES = st.lists(
    st.tuples(st.sampled_from(["image", "photo", ""]), st.tuples(TEXT, mutated() | st.just(PNG))), max_size=3
)
BODIES = st.one_of(
    st.fixed_dictionaries({"content": mutated() | st.binary(max_size=100) | st.just(PNG)}),
    st.fixed_dictionaries({"json": st.recursive(st.none() | st.integers() | TEXT, st.lists, max_leaves=9)}),
    st.fixed_dictionaries({"files": FILES, "data": st.dictionaries(TEXT, TEXT, max_size=3)}),
    st.fixed_dictionaries({"data": PARAMETERS, "files": st.just([("image", ("a.png", PNG))])}),
    st.fixed_dictionaries({
        "content": st.binary(max_size=40) | mutated(FORM),
        "headers": st.just({"Content-Type": "multipart/form-data; boundary=b"}),
    }),
)  # fmt: skip


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    service = Service(small_predictor(small_clip_of()), Limits(upload=0.5, megapixels=1))
    with TestClient(create_app(service), base_url=URL) as client:
        yield client


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(route=ROUTES, parameters=PARAMETERS, body=BODIES)
def test_no_request_breaks_the_server(
    client: TestClient, route: str, parameters: dict[str, str], body: dict[str, Any]
) -> None:
    answer = client.post(f"/api/{route}", params=parameters, **body)
    assert answer.status_code < 500, answer.text
    assert client.post("/api/predict", content=PNG).status_code == 200


def test_a_crash_is_told_without_what_is_inside(
    serve: Serve, predictor: Predictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(*_: object) -> None:
        raise ValueError("inside")

    monkeypatch.setattr(predictor, "best_classes", crash)
    client = serve()
    answer = client.post("/api/predict", content=PNG)
    assert (answer.status_code, answer.json()["kind"], "inside" in answer.text) == (500, "server", False)
    assert client.get("/api/info").status_code == 200


def test_a_request_beyond_those_at_a_time_is_to_come_later(
    serve: Serve, predictor: Predictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, rank, inside = serve(Limits(connections=1)), predictor.rank, list[Any]()

    def ask(*given: Any) -> Any:
        inside.append(client.get("/api/info"))
        return rank(*given)

    monkeypatch.setattr(predictor, "rank", ask)
    assert client.post("/api/predict", content=PNG).status_code == 200
    assert client.get("/api/info").status_code == 200
    assert (inside[0].status_code, inside[0].json()["kind"], inside[0].headers["retry-after"]) == (
        503, "busy", "2",
    )  # fmt: skip


COOKIES = {
    "a name=of another server; dear_token=s3cret": 200,
    "dear_tokens=s3cret": 401,
    "dear_token": 401,
    ";=;": 401,
}
HEADERS = {
    **{f"{scheme} s3cret": 200 for scheme in ("Bearer", "bearer", "BEARER", "Bearer  ")},
    **{wrong: 401 for wrong in ("Bearer other", "Basic s3cret", "s3cret", "Bearer", "")},
}


@pytest.mark.parametrize(
    ("name", "value", "status"),
    [("cookie", *item) for item in COOKIES.items()] + [("authorization", *item) for item in HEADERS.items()],
)
def test_where_a_token_is_taken_from(serve: Serve, name: str, value: str, status: int) -> None:
    client = serve(token="s3cret")
    assert client.get("/api/info", headers={name: value}).status_code == status


def test_a_wrong_token_in_the_address_asks_for_the_right_one(serve: Serve) -> None:
    client = serve(token="s3cret")
    answers = [client.get("/", params={"token": text}, follow_redirects=False) for text in ("no", "s3cret")]
    assert [answer.status_code for answer in answers] == [401, 303]


def test_behind_a_proxy_that_removes_a_prefix(predictor: Predictor) -> None:
    """The proxy asks without the prefix, and the browser needs it: in the addresses of the documentation and
    as the path of the cookie. The page itself has relative addresses alone.
    """
    app = create_app(Service(predictor, LIMITS), token="s3cret", page=True)
    with serving(app, "/clip") as address, httpx.Client(base_url=address, trust_env=False) as proxy:
        assert proxy.get("/health").status_code == 200
        assert [proxy.get(path).status_code for path in ("/", "/docs", "/api/info")] == [401, 401, 401]
        entry = proxy.get("/?token=s3cret")
        assert (entry.status_code, entry.headers["location"]) == (303, "./")
        assert "Path=/clip/" in entry.headers["set-cookie"]
        proxy.headers["authorization"] = "Bearer s3cret"
        docs = proxy.get("/docs")
        assert "'unsafe-inline'" in docs.headers["content-security-policy"]
        files = re.findall(r"""(?:src|href|url)["']?[=:] ?["'](/[^"']+)""", docs.text)
        assert len(files) >= 3
        for file in files:
            assert file.startswith("/clip/")
            assert proxy.get(file.removeprefix("/clip")).status_code == 200
        assert proxy.get("/openapi.json").json()["servers"] == [{"url": "/clip"}]
        assert proxy.post("/api/predict", content=PNG).status_code == 200
        assert not re.search(r"""(?:src|href)="/""", proxy.get("/").text)


@pytest.mark.parametrize(
    ("origin", "host", "status"),
    [
        ("http://127.0.0.1", "127.0.0.1", 200),
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
def test_a_web_page_of_another_server_is_refused(serve: Serve, origin: str, host: str, status: int) -> None:
    client = serve(origin="https://told.example")
    headers = {"origin": origin, "host": host}
    assert client.post("/api/predict", content=PNG, headers=headers).status_code == status
    answer = client.get("/api/info", headers=headers)
    assert answer.status_code == status
    assert not any(name.startswith("access-control") for name in answer.headers)


def test_a_method_that_encodes_names_for_each_image_takes_fewer(serve: Serve, predictor: Predictor) -> None:
    def count_names(count: int, first: str) -> int:
        names = ",".join(f"{first}{number}" for number in range(count))
        answer = serve().post("/api/predict", params={"classes": names}, content=PNG)
        return int(answer.status_code)

    assert (count_names(101, "a"), count_names(1000, "a"), count_names(1001, "a")) == (200, 200, 413)
    method = predictor.method
    method.declaration = replace(method.declaration, text_depends_on_image=True)
    assert (count_names(100, "b"), count_names(101, "b")) == (200, 413)


def test_clients_choose_no_label_of_the_metrics(serve: Serve) -> None:
    client = serve()
    for number in range(3):
        client.request(f"X{number}", f"/nothing{number}")
    text = client.get("/metrics").text
    assert 'dear_http_requests_total{handler="none",status="404"} 3.0' in text
    assert "nothing" not in text
    assert "X1" not in text


def test_a_route_takes_the_fields_that_its_schema_has(serve: Serve) -> None:
    client = serve()
    for route, parts in client.get("/openapi.json").json()["paths"].items():
        if "requestBody" in parts.get("post", {}):
            form = parts["post"]["requestBody"]["content"]["multipart/form-data"]["schema"]["properties"]
            assert ("classes" in form) == (route in ("/api/predict", "/api/batch"))
            place = {"layer": 1, "head": 0} if "attention" in route else {}
            picture, names = {"image": ("a.png", PNG)}, {"classes": "a, b"}
            answer = client.post(route, params=place, files=picture, data=names)
            assert answer.json().get("kind") == (None if "classes" in form else "form")


def documented() -> set[tuple[str, str]]:
    """The routes in the tables of the guide, "| `/api/predict?top=5` | ...", of which each has a way."""
    routes = set[tuple[str, str]]()
    for way, table in re.findall(
        r"^Requests with (GET|POST).*?\n\n(.*?)\n\n", GUIDE, re.MULTILINE | re.DOTALL
    ):
        paths = re.findall(r"`(/[^`?]*)", "\n".join(row.split("|")[1] for row in table.splitlines()))
        routes |= {(way, path) for path in paths}
    return routes


def test_the_routes_are_those_that_are_documented(predictor: Predictor) -> None:
    app = create_app(Service(predictor), page=True)
    routes = {(way, route.path) for route in app.routes for way in getattr(route, "methods", ())}  # type: ignore[attr-defined]
    assert {route for route in routes if route[0] != "HEAD"} - {
        ("GET", "/docs/oauth2-redirect")
    } == documented()


def test_head_is_answered_as_get(serve: Serve) -> None:
    """Monitors ask so."""
    client = serve(page=True)
    for path in ("/health", "/api/info", "/", "/metrics"):
        asked, read = client.head(path), client.get(path)
        assert (asked.status_code, asked.headers["content-type"]) == (200, read.headers["content-type"])
    assert client.head("/api/predict").status_code == 405


def test_the_page_of_the_api_loads_nothing_from_elsewhere(serve: Serve) -> None:
    client = serve()
    text = client.get("/docs").text
    loaded = re.findall(r'(?:href|src)="([^"]*)"', text)
    assert len(loaded) == 3
    assert all(client.get(path).status_code == 200 and path.startswith("/") for path in loaded)


def test_the_guide_names_every_kind() -> None:
    sources = "".join(path.read_text() for path in (ROOT / "src/dear/serving").glob("*.py"))
    kinds = {*re.findall(r'Refused\(\s*\d{3}, "([a-z-]+)"', sources)}
    rows = GUIDE.partition("| status | kind | reason |")[2].partition("\n\n")[0]
    assert {*re.findall(r"^\|[^|]*\| `([a-z-]+)`", rows, re.MULTILINE)} == kinds


def test_the_containers_health_check_succeeds_if_the_server_answers(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (ROOT / "Containerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    [command] = re.findall(r"^HEALTHCHECK .*CMD (\[.*\])$", text, re.MULTILINE)
    python, option, program = json.loads(command)
    assert (python, option) == ("python", "-c")
    client, asked = serve(token="s3cret"), list[tuple[str, int]]()

    def urlopen(url: str, timeout: float) -> None:
        asked.append((url, client.get(url).status_code))
        assert timeout < 5

    monkeypatch.setattr(urllib.request, "urlopen", urlopen)
    exec(program, {})
    assert asked == [("http://127.0.0.1:7860/health", 200)]
    assert "EXPOSE 7860" in text


def test_a_request_steers_the_features(serve: Serve, predictor: Predictor) -> None:
    client = serve()
    learned = client.get("/api/info").json()["fusion"]
    assert learned == pytest.approx(predictor.own_vocabulary.weights())
    own = client.post("/api/predict", content=PNG).json()
    assert "unchanged" not in own
    for parameters in ({"fusion": "class=1,color=0,object=0"}, {"decoupled": "true"}):
        steered = client.post("/api/predict", content=PNG, params=parameters).json()
        assert steered["unchanged"] == own["top"]
        for candidate in steered["top"]:
            assert candidate["evidence"]["color"] == candidate["evidence"]["object"] == 0
            assert candidate["evidence"]["class"] == pytest.approx(candidate["logit"])
    answer = client.post("/api/predict", content=PNG, params={"fusion": "colors=0"})
    assert (answer.status_code, answer.json()["kind"]) == (400, "parameter")
