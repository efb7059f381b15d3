"""Whatever a client sends: an answer below 500, and the next honest request is answered as before."""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dear.serving.limits import Limits
from dear.serving.service import Service
from tests.conftest import small_clip_of
from tests.unit.serving.small import picture, png, small_predictor

pytest.importorskip("fastapi", reason="the extra `app` is not installed")
from fastapi.testclient import TestClient

from dear.serving.api import create_app

PNG = png(picture())
FORM = b'--b\r\nContent-Disposition: form-data; name="image"; filename="x"\r\n\r\n' + PNG + b"\r\n--b--\r\n"
TEXT = st.text(max_size=60)
NUMBER = st.integers(-(2**70), 2**70).map(str) | st.floats().map(str) | TEXT
ROUTES = st.sampled_from(["predict", "batch", "neighbours", "attention", "info", "roles", "examples/0", "x"])
PARAMETERS = st.dictionaries(
    st.sampled_from(["top", "classes", "layer", "head", "token", "png", "by", "weights", "count", "x"]),
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
    st.fixed_dictionaries(
        {
            "content": st.binary(max_size=40) | mutated(FORM),
            "headers": st.just({"Content-Type": "multipart/form-data; boundary=b"}),
        }
    ),
)


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    service = Service(small_predictor(small_clip_of()), Limits(upload=0.5, megapixels=1, rate=0, wait=0))
    with TestClient(create_app(service), base_url="http://127.0.0.1") as client:
        yield client


@pytest.fixture(scope="module")
def honest(client: TestClient) -> Any:
    """The answer to an honest request."""
    return client.post("/api/predict", content=PNG).json()


@settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(route=ROUTES, parameters=PARAMETERS, body=BODIES)
def test_no_request_breaks_the_server(
    client: TestClient, honest: Any, route: str, parameters: dict[str, str], body: dict[str, Any]
) -> None:
    answer = client.post(f"/api/{route}", params=parameters, **body)
    assert answer.status_code < 500, answer.text
    assert client.post("/api/predict", content=PNG).json() == honest
