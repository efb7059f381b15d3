"""`dear serve` as a process: docs/serve.md's requests as written, the token, and the end."""

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from PIL import Image

import dear
from tests.documented import blocks
from tests.e2e.conftest import Start

httpx = pytest.importorskip("httpx", reason="the extra `dev` is not installed")
pytest.importorskip("uvicorn", reason="the extra `app` is not installed")

PAGE = "docs/serve.md"
[START] = (block for block in blocks(PAGE, "sh") if block.startswith("dear serve"))
REQUESTS = "".join(block for block in blocks(PAGE, "sh") if block.startswith("curl") and "7861" not in block)
[PYTHON] = (block for block in blocks(PAGE, "python") if "api/predict" in block)
ADDRESS = "http://127.0.0.1:7860"
TOKEN = "secret"
BEARER = {"Authorization": f"Bearer {TOKEN}"}
CURL = shutil.which("curl")
STATIC = Path(dear.__file__).parent / "serving" / "static"


@pytest.fixture(scope="module")
def server(start_server: Start) -> tuple[subprocess.Popen[str], str]:
    """A server that wants a token, and its address."""
    return start_server(token=TOKEN)


@pytest.fixture
def with_token(server: tuple[subprocess.Popen[str], str]) -> str:
    return server[1]


@pytest.mark.skipif(CURL is None, reason="there is no curl")
def test_the_requests_with_curl(served: Path, with_token: str, tmp_path: Path) -> None:
    place = shutil.copytree(served, tmp_path / "served")
    (place / ".curlrc").write_text("fail-with-body\nsilent\nno-progress-meter\n")  # a refusal is an error
    assert START.strip() == "dear serve my-classifier"  # `start_server` adds the index, for the neighbors
    assert REQUESTS.count(ADDRESS) == 4
    environment = os.environ | {"HOME": str(place), "CURL_HOME": str(place), "DEAR_TOKEN": TOKEN}
    words = ["bash", "-ec", REQUESTS.replace(ADDRESS, with_token)]
    done = subprocess.run(words, cwd=place, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith('{"top":[{"name":')
    assert done.stdout.count('{"results":[{"top":[{"name":') == 1
    assert '{"neighbors":[{"path":' in done.stdout
    with Image.open(place / "look.png") as look:
        assert look.format == "PNG"


def test_the_request_in_python(
    served: Path, with_token: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(served)
    program = PYTHON.replace(ADDRESS, with_token).replace("Bearer TOKEN", f"Bearer {TOKEN}")
    exec(compile(program, PAGE, "exec"), {"__name__": "__main__"})
    names = dear.Bundle.from_pretrained(served / "my-classifier").classes
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert all(line.startswith(names) for line in lines)


def test_the_token(with_token: str, cup: bytes) -> None:
    with httpx.Client(base_url=with_token, trust_env=False, timeout=60) as stranger:
        assert stranger.get("/health").json() == {"status": "ok"}
        paths = ("/api/info", "/api/roles", "/metrics", "/openapi.json", "/docs", "/page.js", "/nothing")
        answers = [*map(stranger.get, paths), stranger.post("/api/predict", content=cup)]
        wrong = {"Authorization": "Bearer wrong"}, {"Cookie": "dear_token=wrong"}, {"Authorization": TOKEN}
        answers += [stranger.get("/api/info", headers=headers) for headers in wrong]
        for answer in answers:
            assert (answer.status_code, answer.json()["kind"]) == (401, "token")
            assert answer.headers["www-authenticate"] == "Bearer"
        for path in ("/", "/?token=<b>wrong</b>"):
            login = stranger.get(path)
            assert (login.status_code, "<form" in login.text, "<b>" in login.text) == (401, True, False)
        assert stranger.get("/api/info", headers=BEARER).status_code == 200
        assert stranger.get(f"/api/info?token={TOKEN}").status_code == 401  # only of the page
        opened = stranger.get(f"/?token={TOKEN}")
        assert (opened.status_code, opened.headers["location"]) == (303, "./")
        assert {"HttpOnly", "SameSite=Strict"} <= {*opened.headers["set-cookie"].split("; ")}
        assert stranger.get("/").content == (STATIC / "index.html").read_bytes()  # by the cookie
        assert stranger.post("/api/predict", content=cup).status_code == 200


@pytest.mark.parametrize("ending", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.long)])
def test_the_end(start_server: Start, ending: signal.Signals) -> None:
    process, _ = start_server(token=TOKEN)
    process.send_signal(ending)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 0
    assert TOKEN not in said
