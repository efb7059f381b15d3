"""What can be reached: the files of the page and the documented API, and no file of the machine besides."""

import io
import json
import re
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image

from dear.backbone.clip import Clip
from dear.data.images.decode import as_image
from dear.data.loading import load_dataset
from dear.errors import DataError, SettingsError
from dear.serving.examples import examples_of
from dear.serving.limits import Limits
from dear.serving.service import Service
from tests.e2e.test_page import serving
from tests.unit.serving.small import picture, small_predictor

pytest.importorskip("fastapi", reason="the extra `app` is not installed")
import httpx
from fastapi.testclient import TestClient

from dear.serving.api import create_app

SECRET = b"only for those who may read this file"
GUIDE = Path(__file__).parents[3] / "docs" / "use.md"
# Addresses that the servers of Gradio and FastAPI answer, and others that lead to files elsewhere.
ADDRESSES = [
    "/config",
    "/monitoring",
    "/monitoring/summary",
    "/redoc",
    "/info",
    "/startup-events",
    "/theme.css",
    "/gradio_api/info",
    "/gradio_api/config",
    "/gradio_api/deep_link?session_hash=x",
    "/?deep_link=x",
    "/gradio_api/queue/data?session_hash=x",
    "/gradio_api/heartbeat/x",
    "/gradio_api/component_server",
    "/gradio_api/file={file}",
    "/file={file}",
    "/gradio_api/file={url}",
    "/gradio_api/file/{file}",
    "/gradio_api/proxy={url}",
    "/proxy=http://127.0.0.1:{port}/api/info",
    "/static/img/logo.svg",
    "/gradio_api/stream/x/y/z/playlist.m3u8",
    "/custom_component/x/client/component/{file}",
    "/{file}",
    "/{url}",
    "/static{file}",
    "/page.css/..{file}",
    "/page.css%00{file}",
    "/api/info/..{file}",
    "/../../../../../../../..{file}",
    "/..%2f..%2f..%2f..%2f..%2f..%2f..{file}",
    "/%2e%2e/%2e%2e/%2e%2e{file}",
    "/..\\..\\..{file}",
    "/page.js?file={file}",
    "/static/index.html",
    "/index.html",
    "/guard.py",
    "/../page.py",
]
POSTS = [
    "/gradio_api/queue/join",
    "/gradio_api/run/classify",
    "/gradio_api/run/look",
    "/gradio_api/call/classify",
    "/gradio_api/upload",
    "/gradio_api/api/predict",
    "/run/predict",
    "/queue/join",
    "/api/predict/",
    "/gradio_api/component_server",
    "/gradio_api/reset",
]


@pytest.fixture
def service(small_clip: Clip) -> Service:
    return Service(small_predictor(small_clip), Limits(upload=1, rate=0, wait=0))


@pytest.fixture
def address(service: Service) -> Iterator[str]:
    with serving(service) as one:
        yield one


def raw(address: str, request: str) -> bytes:
    """A server's whole answer to a request as it is written here, without any client's tidying."""
    host, port = address.removeprefix("http://").strip("/").split(":")
    with socket.create_connection((host, int(port)), 30) as opened:
        opened.sendall(request.encode("latin-1"))
        return b"".join(iter(lambda: opened.recv(65536), b""))


def test_the_routes_are_those_that_are_documented(service: Service) -> None:
    app = create_app(service, page=True)
    found = {(method, route.path) for route in app.routes for method in route.methods}  # type: ignore[attr-defined]
    assert found - {(method, path) for method, path in found if method == "HEAD"} == documented()
    assert {path for method, path in found if method == "HEAD"} == {"/", "/page.css", "/page.js", "/table.js"}


def documented() -> set[tuple[str, str]]:
    """The routes in the table of the guide: "| `POST /api/predict?top=5` | ...", a row's method for all."""
    rows = re.findall(r"^\| (`(?:GET|POST) .*?) \|", GUIDE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {
        (row[1:].split()[0], path.split("?")[0])
        for row in rows
        for path in re.findall(r"(?<=[` ])/[^` ]*", row)
    }


def test_the_schema_has_the_routes_that_answer_programs(service: Service) -> None:
    schema = (
        TestClient(create_app(service, page=True), base_url="http://127.0.0.1").get("/openapi.json").json()
    )
    found = {(way.upper(), path) for path, ways in schema["paths"].items() for way in ways}
    page = {"/", "/page.css", "/page.js", "/table.js", "/docs", "/openapi.json"}
    assert found == {(way, path) for way, path in documented() if path not in page}
    predict = schema["paths"]["/api/predict"]["post"]
    assert {one["name"]: one["schema"].get("default") for one in predict["parameters"]} == {
        "top": 5,
        "classes": None,
    }
    assert {*predict["requestBody"]["content"]} == {"image/*", "multipart/form-data"}
    assert "security" not in schema
    for path, ways in schema["paths"].items():
        for way, route in ways.items():
            for sample in route.get("x-codeSamples", ()):
                assert f"http://127.0.0.1:7860{path}" in sample["source"]
            assert ("x-codeSamples" in route) == (way == "post" or path == "/metrics")


def test_the_page_of_the_api_names_each_route_and_loads_nothing_from_elsewhere(service: Service) -> None:
    client = TestClient(create_app(service, token="s3cret"), base_url="http://127.0.0.1")
    assert client.get("/docs").status_code == client.get("/openapi.json").status_code == 401
    headers = {"Authorization": "Bearer s3cret"}
    schema = client.get("/openapi.json", headers=headers).json()
    assert schema["security"] == [{"token": []}]
    text = client.get("/docs", headers=headers).text
    assert all(f"{way.upper()} {path}<" in text for path, ways in schema["paths"].items() for way in ways)
    assert "<code>weights</code>" in text  # a parameter
    assert (
        "curl -F image=@cup.jpg -F image=@notes.txt &#x27;http://127.0.0.1:7860/api/batch?top=1&#x27;" in text
    )
    assert "&quot;retry_after&quot;" not in text
    assert "&quot;probability&quot;: 0.547" in text  # of an example
    assert set(re.findall(r'(?:href|src)="([^"]*)"', text)) == {"data:,", "page.css", "openapi.json"}
    assert "<script" not in text


def test_the_pulse_needs_no_token_and_says_nothing_else(service: Service) -> None:
    client = TestClient(create_app(service, token="s3cret"), base_url="http://127.0.0.1")
    answer = client.get("/health")
    assert (answer.status_code, answer.json()) == (200, {"status": "ok"})
    assert client.get("/api/info").status_code == 401


def test_examples_are_answered_by_number(small_clip: Clip, tmp_path: Path) -> None:
    folder = tmp_path / "some"
    folder.mkdir()
    for seed in range(3):
        path = folder / ("more" if seed else "") / f"cup {seed}.png"
        path.parent.mkdir(exist_ok=True)
        picture(seed).save(path)
    (folder / "bad.png").write_bytes(b"x")
    predictor = small_predictor(small_clip)
    shown = examples_of(predictor.bundle, folder)
    assert {one.name for one in shown} == {"cup 0", "more/cup 1", "more/cup 2"}
    service = Service(predictor, Limits(wait=0), examples=shown)
    client = TestClient(create_app(service), base_url="http://127.0.0.1")
    assert client.get("/api/info").json()["examples"] == [one.name for one in shown]
    for at, one in enumerate(shown):
        got = Image.open(io.BytesIO(client.get(f"/api/examples/{at}").content))
        assert got.tobytes() == picture(int(one.name[-1])).tobytes()
    for number in ("3", "-1", "x"):
        assert client.get(f"/api/examples/{number}").status_code in (404, 422)
    (folder / "empty").mkdir()
    with pytest.raises(DataError, match="no files with an image suffix"):
        examples_of(predictor.bundle, folder / "empty")
    with pytest.raises(SettingsError, match=r"--examples .*none is no folder"):
        examples_of(predictor.bundle, tmp_path / "none")


def test_examples_are_small(small_clip: Clip, tmp_path: Path) -> None:
    """Clients that read none of a panorama's 7.5 MB took the server to 3 GB."""
    Image.new("RGB", (3000, 600)).save(tmp_path / "a.png")
    (example,) = examples_of(small_predictor(small_clip).bundle, tmp_path)
    assert Image.open(io.BytesIO(example.png)).size == (1024, 205)  # 600 pixels become 512, 3000 2560


def test_only_a_bundle_of_a_world_task_has_examples_of_its_own(small_clip: Clip) -> None:
    bundle, task = small_predictor(small_clip).bundle, load_dataset("mixed-paints")
    assert examples_of(bundle) == ()
    of_world = replace(bundle, training={"data": task.name, "data_identity": task.identity})
    found = examples_of(of_world)
    assert len(found) == len({one.name for one in found}) == 8
    assert {one.name for one in found} <= {*task.classnames}
    label = task.classnames.index(found[3].name)
    own = [at for at, one in enumerate(task.test.labels.tolist()) if one == label]
    pixels = Image.open(io.BytesIO(found[3].png))
    assert any(as_image(one).tobytes() == pixels.tobytes() for one in task.test.load(torch.tensor(own)))
    other = replace(bundle, training={"data": task.name, "data_identity": "a folder of that name"})
    assert examples_of(other) == ()


def test_no_address_leads_to_a_file_of_the_machine(address: str, tmp_path: Path) -> None:
    file = tmp_path / "secret.txt"
    file.write_bytes(SECRET)
    (tmp_path / "link.png").symlink_to(file)
    port = address.rsplit(":", 1)[1].strip("/")
    for place in (file, tmp_path / "link.png"):
        for pattern in ADDRESSES:
            path = pattern.format(file=place, url=f"file://{place}", port=port)
            for form in (path, f"http://elsewhere.example{path}"):  # as a proxy is asked
                request = f"GET {form} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
                answer = raw(address, request)
                assert SECRET not in answer, form
                status = int(answer.split()[1])
                own = form.split("?")[0] in ("/", "/page.js")
                assert status == 200 if own else status in (400, 404), (form, status)
    tunnel = raw(
        address, f"CONNECT 127.0.0.1:{port} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    )
    assert int(tunnel.split()[1]) in (400, 404)


def test_no_request_names_a_file_of_the_machine(address: str, service: Service, tmp_path: Path) -> None:
    file = tmp_path / "secret.png"
    Image.new("RGB", (31, 29), "red").save(file)  # a good image: whoever reads it would answer
    data = {"path": str(file), "url": f"file://{file}", "meta": {"_type": "gradio.FileData"}}
    event = {"data": [data, "", 5], "fn_index": 0, "session_hash": "x", "image": str(file)}
    with httpx.Client(base_url=address, trust_env=False, timeout=30) as client:
        for path in POSTS:
            assert client.post(path, json=event).status_code == 404, path
        for kind in ("predict", "neighbours", "attention?layer=1&head=0"):
            for body in (json.dumps(event), str(file), f"file://{file}", f"http://localhost/{file}"):
                answer = client.post(
                    f"/api/{kind}", content=body, headers={"content-type": "application/json"}
                )
                assert answer.status_code == 415, (kind, body)
                form = {"image": (None, body)}  # a field that is no file
                assert client.post(f"/api/{kind}", files=form).status_code == 400
                link = client.post(f"/api/{kind}", content=b"", params={"image": body, "path": body})
                assert "unknown parameter" in link.json()["error"]
    assert service.batches.items == 0


def test_no_answer_names_a_place_of_this_machine(address: str, tmp_path: Path) -> None:
    with httpx.Client(base_url=address, trust_env=False, timeout=30) as client:
        answers = [client.get(path) for path in ("/", "/page.js", "/api/info", "/api/roles", "/nothing")]
        answers.append(client.post("/api/predict", content=b"x"))
        answers.append(client.post("/api/neighbours", content=b"x"))
    for answer in answers:
        for place in (Path.home(), Path.cwd(), Path(__file__).parents[3], tmp_path.parents[1]):
            assert len(place.parts) < 2 or str(place) not in answer.text, (answer.url, place)


def test_a_page_may_load_and_send_nothing_else(address: str) -> None:
    policy = httpx.get(address, trust_env=False).headers["content-security-policy"]
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    assert rules["default-src"] == "'none'"
    assert rules["script-src"] == rules["connect-src"] == rules["style-src"] == "'self'"
    assert "unsafe" not in policy
