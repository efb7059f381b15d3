"""Where a server listens, how long it keeps connections, and what is refused before a backbone is loaded."""

import math

import pytest

from dear.cli.main import main
from dear.errors import OutputError, SettingsError
from dear.serving.limits import Limits
from dear.serving.server import PublicAddress, is_loopback, listen, server_of, trusted_hosts


def test_a_free_port_of_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    with listen("127.0.0.1", 0, None) as opened:
        port = opened.getsockname()[1]
        with pytest.raises(OutputError):
            listen("127.0.0.1", port, None)
        assert main(["serve", "owner/bundle", "--port", str(port)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert f"127.0.0.1:{port}" in error


@pytest.mark.parametrize("options", ["--host 0.0.0.0", "--port 70000", "--token a;b", "--origin clip"])
def test_what_is_refused_before_a_bundle_is_looked_at(options: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DEAR_TOKEN", raising=False)
    assert main(["serve", "./nowhere", *options.split()]) == 2


@pytest.mark.parametrize(
    ("host", "port", "token", "kind"),
    [
        ("0.0.0.0", 0, None, SettingsError),
        ("127.0.0.1", 70_000, None, OutputError),
        ("127.0.0.1", 0, "a;b", SettingsError),
        ("127.evil.example", 0, None, SettingsError),
        ("127..0.0.1", 0, None, SettingsError),
        ("127..0.0.1", 0, "secret", OutputError),
    ],
)
def test_where_it_does_not_listen(host: str, port: int, token: str | None, kind: type[Exception]) -> None:
    with pytest.raises(kind):
        listen(host, port, token)


def test_loopback() -> None:
    assert all(map(is_loopback, ["localhost", "127.0.0.1", "127.8.8.8", "::1"]))
    others = ["0.0.0.0", "192.168.0.127", "::", "localhost.example", "127.1", "127.lan"]
    assert not any(map(is_loopback, others))


def test_the_names_that_it_answers_to() -> None:
    assert trusted_hosts("0.0.0.0", None) is None
    local = {"localhost", "127.0.0.1", "[::1]"}
    assert set(trusted_hosts("127.0.0.2", None) or ()) == local | {"127.0.0.2"}
    public = PublicAddress.parse("https://Clip.example:8443/Our/clip/")
    assert public == ("https://clip.example:8443", "clip.example", "/Our/clip")
    assert PublicAddress.parse("http://clip.example/").prefix == ""
    assert set(trusted_hosts("localhost", public) or ()) == local | {"clip.example"}
    for wrong in ("clip.example", "ftp://clip.example", "https://clip.example/a?b", "https://", "null", ""):
        with pytest.raises(SettingsError):
            PublicAddress.parse(wrong)


@pytest.mark.parametrize("wrong", [{"images": -1}, {"upload": 0}, {"batch": 0}, {"megapixels": math.inf}])
def test_limits_that_make_no_sense(wrong: dict[str, float]) -> None:
    with pytest.raises(SettingsError, match=next(iter(wrong))):
        Limits(**wrong)  # type: ignore[arg-type]


def test_connections_are_kept_longer_than_proxies_keep_them() -> None:
    """Else a request is lost that is sent while the server closes. Caddy's default is 120 s."""
    fastapi = pytest.importorskip("fastapi", reason="the extra `app` is not installed")
    assert 120 < server_of(fastapi.FastAPI()).config.timeout_keep_alive < 300
