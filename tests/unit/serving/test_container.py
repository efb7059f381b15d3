"""The container's own sign of health: its command asks a route that needs no token."""

import json
import re
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from dear.backbone.clip import Clip
from dear.serving.limits import Limits
from dear.serving.service import Service
from tests.unit.serving.small import small_predictor

pytest.importorskip("fastapi", reason="the extra `app` is not installed")
from fastapi.testclient import TestClient

from dear.serving.api import create_app

CONTAINERFILE = Path(__file__).parents[3] / "Containerfile"


def test_the_health_check_succeeds_if_the_server_answers(
    small_clip: Clip, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = CONTAINERFILE.read_text(encoding="utf-8").replace("\\\n", " ")
    [command] = re.findall(r"^HEALTHCHECK .*CMD (\[.*\])$", text, re.MULTILINE)
    python, option, program = json.loads(command)
    assert (python, option) == ("python", "-c")
    app = create_app(Service(small_predictor(small_clip), Limits()), token="s3cret", hosts=None)
    client, asked = TestClient(app), list[str]()

    def urlopen(url: str, timeout: float) -> Any:
        asked.append(url)
        assert timeout < 5
        answer = client.get(url)
        assert answer.status_code == 200
        return answer

    monkeypatch.setattr(urllib.request, "urlopen", urlopen)
    exec(program, {})
    assert asked == ["http://127.0.0.1:7860/health"]
    assert "EXPOSE 7860" in text
