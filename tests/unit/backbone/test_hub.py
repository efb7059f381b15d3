"""Files of the hub, from a stand-in of it: announced, compared with their hash, resumed, and used offline."""

import io
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub.utils import get_session
from safetensors.torch import save
from torch import Tensor

from dear.backbone import hub, hub_answers, weights
from dear.backbone.choice import BackboneName
from dear.backbone.load import find_weights, load_clip
from dear.data.sources.huggingface_hub import fetched
from dear.errors import WeightsError
from dear.limits import LIMITS, Limit, LimitError, at_most
from tests.standin_hub import CHUNK, COMMIT, Faults, StandIn, git_hash, sha256
from tests.unit.backbone.prime import NAME

CLIP, FILE = "someone/prime-clip", "open_clip_model.safetensors"
FETCH = "import sys; from dear.backbone import hub; print(hub.fetch(sys.argv[1], [sys.argv[2]]))"


@pytest.fixture
def content(standin: StandIn, state: dict[str, Tensor]) -> bytes:
    """The weights of the small architecture, served under the name that open_clip asks for."""
    saved = save(state)
    standin.files[CLIP] = {"README.md": b"a card", FILE: saved}
    return saved


def tree(folder: Path) -> dict[str, int]:
    """The files below a folder with the time of their last change."""
    return {str(path.relative_to(folder)): path.lstat().st_mtime_ns for path in folder.rglob("*")}


def test_a_first_fetch_tells_size_and_licence_and_a_second_asks_nobody(
    standin: StandIn, content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    clip = load_clip(NAME, "plain")
    assert clip.identity.sha256 == load_clip(NAME, "random:3").identity.sha256
    told = [line for line in capsys.readouterr().err.splitlines() if line.startswith("dear:")]
    assert told == [
        f"dear: fetching {NAME}/plain once from {standin.endpoint}/{CLIP}, {len(content) / 1e6:.0f} MB, "
        f"licence mit; it is kept in {tmp_path / 'cache'}"
    ]
    asked, cache = len(standin.requests), tree(tmp_path / "cache")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert load_clip(NAME, "plain").identity == clip.identity
    assert len(standin.requests) == asked
    assert capsys.readouterr().err == ""
    assert tree(tmp_path / "cache") == cache  # so that it may be read-only


def test_what_is_corrupt_is_refused_and_removed(standin: StandIn, content: bytes, tmp_path: Path) -> None:
    standin.faults.corrupt = True
    with pytest.raises(
        WeightsError, match=rf"{FILE} of {CLIP} is damaged: .*hub states {sha256(content)}"
    ) as caught:
        load_clip(NAME, "plain")
    assert "removed" in str(caught.value)
    assert "\n" not in str(caught.value)
    left = [
        path.name
        for path in (tmp_path / "cache").rglob("*")
        if path.name.startswith((FILE, sha256(content)[:8]))
    ]
    assert left == [sha256(content) + ".lock"] or not left
    standin.faults.corrupt = False
    load_clip(NAME, "plain")


def test_what_is_damaged_in_the_cache_is_refused(content: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    path = hub.fetch(CLIP, [FILE])
    blob = path.resolve()
    assert blob.name == sha256(content)
    blob.write_bytes(content[:-1] + b"x")

    def unlink(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", unlink)
        with pytest.raises(
            WeightsError, match=rf"cannot be removed \(Permission denied\): delete .*{blob.name}"
        ):
            hub.fetch(CLIP, [FILE])
    with pytest.raises(WeightsError, match=r"is damaged: .*It was removed"):
        hub.fetch(CLIP, [FILE])
    assert not blob.exists()
    assert hub.fetch(CLIP, [FILE]).read_bytes() == content


def test_a_small_file_is_compared_with_gits_hash(standin: StandIn) -> None:
    standin.files[CLIP] = {"config.json": b"{}"}
    path = hub.fetch(CLIP, ["config.json"])
    assert path.resolve().name == git_hash(b"{}") == "9e26dfeeb6e641a33dae4961196235bdb965b21b"
    path.resolve().write_bytes(b"[]")
    with pytest.raises(WeightsError, match=r"config\.json of .* is damaged"):
        hub.fetch(CLIP, ["config.json"])


@pytest.mark.parametrize("fault", ["etag", "commit", "missing"])
def test_what_a_mirror_answers_is_no_path(fault: str, standin: StandIn, tmp_path: Path) -> None:
    """The hub's client joins it to that of its cache: files were written and removed there."""
    precious, new = tmp_path / "precious", tmp_path / "new"
    precious.write_text("x")
    standin.files[CLIP] = {"config.json": b"{}"}
    for path in (str(precious), str(new), "../../../precious", "../../../new"):
        if fault == "etag":
            standin.faults.etag = path
        else:
            standin.faults.commit, standin.faults.missing = path, fault == "missing"
        with pytest.raises(WeightsError, match=r"states no (hash|commit) of config\.json|does not send"):
            hub.fetch(CLIP, ["config.json"])
    assert sorted(path.name for path in tmp_path.iterdir()) in (["precious"], ["cache", "precious"])
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]


def test_a_link_out_of_the_cache_removes_no_file_there(standin: StandIn, tmp_path: Path) -> None:
    standin.files[CLIP] = {"config.json": b"{}"}
    path = hub.fetch(CLIP, ["config.json"])
    precious = tmp_path / git_hash(b"{}")
    precious.write_text("x")
    path.unlink()
    path.symlink_to(precious)
    with pytest.raises(WeightsError, match="leads out of its repository's cache: remove it"):
        hub.fetch(CLIP, ["config.json"])
    assert precious.read_text() == "x"


def test_a_file_above_its_limit_is_not_fetched(
    standin: StandIn, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    standin.files[CLIP]["config.json"] = b"{}"
    standin.faults.size = 2**27 + 1
    with pytest.raises(LimitError, match=r"config\.json of .*: 134,217,729 bytes of a JSON file"):
        hub.fetch(CLIP, ["config.json"])
    monkeypatch.setenv("DEAR_LIMIT_TENSOR_BYTES", str(len(content) - 1))
    with pytest.raises(LimitError, match=rf"{FILE} of {CLIP}: .* bytes of a file of tensors"):
        load_clip(NAME, "plain")
    assert not [path for method, path, _ in standin.requests if method == "GET" and "/resolve/" in path]
    assert not standin.downloads()


@pytest.mark.parametrize("size", [10**400, -1, "1", 2**63])
def test_a_size_that_is_none(size: object, standin: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    """A size of 400 digits was quoted in full."""
    standin.files[CLIP] = {"config.json": b"{}"}
    stated = hub.huggingface_hub.HfApi.model_info

    def model_info(*args: Any, **options: Any) -> Any:
        info = stated(*args, **options)
        info.siblings[0].size = size
        return info

    monkeypatch.setattr(hub.huggingface_hub.HfApi, "model_info", model_info)
    with pytest.raises(WeightsError, match=f"states no size of the files of {CLIP}") as caught:
        hub.fetch(CLIP, ["config.json"])
    assert len(str(caught.value)) < 200
    with pytest.raises(LimitError, match=r"it: 2\^63 or more bytes of a JSON file, above the limit of"):
        at_most("json_bytes", 10**400, "it")


def test_an_answer_is_not_unpacked_nor_read_to_its_end(
    standin: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five kilobytes, packed twice, took 6.6 GiB; and a file that is longer than stated filled the disk."""
    standin.files[CLIP] = {"config.json": b"{}"}
    standin.faults.packed = "/api/models/"
    with pytest.raises(WeightsError, match=f"packs its answers about {CLIP}"):
        hub.fetch(CLIP, ["config.json"])
    standin.faults.packed, standin.faults.endless = "", True
    with pytest.raises(WeightsError, match=r"sends more than it states of config\.json"):
        hub.fetch(CLIP, ["config.json"])
    for name in ("hub_bytes", "hub_values"):
        monkeypatch.setattr("dear.limits.LIMITS", {**LIMITS, name: Limit(10, name)})
        with pytest.raises(LimitError, match=rf"an answer of the hub about .* {name}, above the limit of 10"):
            hub.fetch(CLIP, ["config.json"])
    assert not [*(tmp_path / "cache").glob("*/blobs/*")]


def test_the_token_goes_to_no_other_address(standin: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither to a redirect's, nor to that of a next page, nor to the one that a header names for storage."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", False)
    monkeypatch.setenv("HF_TOKEN", "hf_mine")
    standin.files[CLIP] = {"config.json": b"{}", FILE: bytes(9000)}
    standin.faults.xet = f"{standin.cdn}/storage"
    hub.fetch(CLIP, ["config.json"])
    hub.fetch(CLIP, [FILE])
    with hub_answers.checked_answers(CLIP, "json_bytes"):
        get_session().get(f"{standin.cdn}/next", headers={"Authorization": "Bearer hf_mine"})
    asked = {path: token for (_, path, _), token in zip(standin.requests, standin.tokens, strict=True)}
    assert asked[f"/{CLIP}/resolve/main/config.json"] == "Bearer hf_mine"
    assert asked[f"/cdn/{CLIP}/{FILE}"] is None
    assert asked["/next"] is None
    assert "/storage" not in asked


def test_nothing_but_the_repository_is_asked_for(standin: StandIn, tmp_path: Path) -> None:
    """The client asked a mirror which variables of the environment to tell it, and kept the answer."""
    standin.files[CLIP] = {"config.json": b"{}"}
    environment = os.environ | {
        "HF_ENDPOINT": standin.endpoint, "HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "0",
        "HF_HUB_DISABLE_TELEMETRY": "0",
    }  # fmt: skip
    subprocess.run([sys.executable, "-c", FETCH, CLIP, "config.json"], env=environment, check=True)
    assert {path for _, path, _ in standin.requests} == {
        "/", f"/api/models/{CLIP}", f"/{CLIP}/resolve/main/config.json",
    }  # fmt: skip
    assert not [*(tmp_path / "home").glob("*.json"), *(tmp_path / "home").glob(".*.json")]


@pytest.mark.usefixtures("content")
def test_a_fetch_that_is_cut_goes_on_where_it_ended(standin: StandIn) -> None:
    standin.faults.cut = 100 * CHUNK
    load_clip(NAME, "plain")
    assert standin.downloads() == [None, f"bytes={100 * CHUNK}-"]


@pytest.mark.usefixtures("content")
def test_after_a_run_that_failed_halfway_the_next_fetches_the_whole_file(
    standin: StandIn, tmp_path: Path
) -> None:
    standin.faults.cut, standin.faults.after_cut = 100 * CHUNK, 500
    with pytest.raises(WeightsError, match="cannot download"):
        load_clip(NAME, "plain")
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.stat().st_size >= 100 * CHUNK]
    standin.faults.status = {}
    load_clip(NAME, "plain")


@pytest.mark.usefixtures("content")
@pytest.mark.parametrize("code", [404, 429, 500])
@pytest.mark.parametrize("part", ["/api/", "/resolve/", "/cdn/"])
def test_an_answer_that_is_an_error_is_told_in_one_line(code: int, part: str, standin: StandIn) -> None:
    standin.faults.status = {part: code}
    with pytest.raises(WeightsError, match=rf"cannot download {NAME}/plain .*local path") as caught:
        load_clip(NAME, "plain")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "headers",
    [
        {"Retry-After": "100000"},
        {"retry-after": "9" * 5000},
        {"RateLimit": '"resolvers";r=0;t=100000'},
        {"Retry-After": "61", "RateLimit": '"resolvers";r=0;t=61'},
    ],
)
def test_a_hub_makes_nobody_wait_for_long(
    headers: dict[str, str], standin: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client waited as long as the answer said, such as a day."""
    waits: list[float] = []
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", waits.append)
    standin.files[CLIP] = {"config.json": b"{}"}
    standin.faults.status, standin.faults.headers = {"/resolve/": 429}, headers
    with pytest.raises(WeightsError, match=r"cannot download config\.json") as caught:
        hub.fetch(CLIP, ["config.json"])
    assert "\n" not in str(caught.value)
    assert max(waits) == hub_answers.LONGEST_WAIT + 1  # the client adds a second
    standin.faults.headers = {"Retry-After": "60"}
    with hub_answers.checked_answers(CLIP, "json_bytes"):
        answer = get_session().get(f"{standin.endpoint}/resolve/")
    assert answer.headers["Retry-After"] == "60"


def test_what_a_hub_warns_of_controls_no_terminal(standin: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.utils._http._WARNED_TOPICS", set(), raising=False)
    shown = io.StringIO()
    standin.files[CLIP] = {"config.json": b"{}"}
    standin.faults.status = {"/api/": 404}
    standin.faults.headers = {"X-HF-Warning": "topic; \x1b]0;owned\x07 \x9b2J" + "a" * 5000}
    (handler,) = logging.getLogger("huggingface_hub").handlers
    monkeypatch.setattr(handler, "stream", shown)
    with pytest.raises(WeightsError):
        hub.fetch(CLIP, ["config.json"])
    line = shown.getvalue().removesuffix("\n")
    assert line.startswith("\\x1b]0;owned\\x07 \\x9b2Jaaa")
    assert line.isprintable()
    assert len(line) == 500


@pytest.mark.parametrize("name", ["a/b\n", "a\n/b", "\na/b", "a/b\x00", "a/b\x1b[2J", "a/b\x85", "a/b\u2028"])
def test_a_name_of_a_repository_has_no_control_characters(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Whatever the hub's client takes for a name: of a model, a tokenizer or a data set."""
    monkeypatch.setattr("huggingface_hub.utils._validators.validate_repo_id", lambda _: None)
    for use in (
        hub.require_name,
        lambda name: hub.cached(name, ["config.json"]),
        lambda name: hub.fetch(name, ["tokenizer.json"]),
        lambda name: fetched(name, "", tmp_path),
        lambda name: load_clip(f"hf-hub:{name}"),
    ):
        with pytest.raises(WeightsError, match="is no name of a repository on the hub") as caught:
            use(name)
        assert str(caught.value).isprintable()


@pytest.mark.usefixtures("content")
def test_a_place_where_nothing_can_be_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(WeightsError, match=r"cannot download .*Not a directory"):
        load_clip(NAME, "plain")


def test_two_processes_that_fetch_at_once_download_once(
    standin: StandIn, content: bytes, tmp_path: Path
) -> None:
    standin.faults.pause = 0.01
    environment = os.environ | {
        "HF_ENDPOINT": standin.endpoint, "HF_HUB_CACHE": str(tmp_path / "both"), "HF_HUB_OFFLINE": "0",
    }  # fmt: skip
    command = [sys.executable, "-c", FETCH, CLIP, FILE]
    both = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    printed = [process.communicate(timeout=120)[0].strip() for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert printed[0] == printed[1]
    assert Path(printed[0]).read_bytes() == content
    assert standin.downloads() == [None]


class TestWellKnown:
    """Weights whose identity is in the package."""

    @pytest.fixture
    def published(self, content: bytes, monkeypatch: pytest.MonkeyPatch) -> str:
        wanted = sha256(content)
        publication = weights.Publication(COMMIT, frozenset([wanted]))
        monkeypatch.setitem(weights.PUBLISHED, BackboneName(NAME, "plain"), publication)
        return wanted

    @pytest.mark.usefixtures("published")
    @pytest.mark.parametrize("tag", ["plain", "PLAIN"])
    def test_they_are_fetched_by_their_commit(self, standin: StandIn, tag: str) -> None:
        """In whatever spelling open_clip takes: another one was of no commit and no hash."""
        find_weights(NAME, tag)
        assert load_clip(NAME, tag).identity.pretrained == "plain"
        asked = [path for _, path, _ in standin.requests if path.startswith(("/api/", f"/{CLIP}"))]
        assert asked
        assert all(COMMIT in path for path in asked)

    def test_others_are_refused_whatever_the_hub_states(
        self, standin: StandIn, content: bytes, published: str
    ) -> None:
        standin.files[CLIP][FILE] = content[:-1] + b"\0"
        with pytest.raises(
            WeightsError, match=rf"is not the file that is known of {CLIP}: .*, not {published}"
        ):
            load_clip(NAME, "plain")

    @pytest.mark.usefixtures("published")
    def test_a_local_file_with_their_name_is_compared(self, content: bytes, tmp_path: Path) -> None:
        path = tmp_path / "plain.safetensors"
        path.write_bytes(content)
        assert load_clip(NAME, str(path)).identity.pretrained == "plain"
        path.write_bytes(content[:-1] + b"\0")
        with pytest.raises(WeightsError, match=f"is not the file that is known of {NAME}/plain"):
            load_clip(NAME, str(path))


def test_answers_that_cannot_be_checked_are_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with another version of the hub's client, which makes its connections elsewhere."""
    monkeypatch.delattr("huggingface_hub.utils._http._GLOBAL_CLIENT_FACTORY")
    with (
        pytest.raises(WeightsError, match=r"huggingface_hub \d.*install the version in requirements"),
        hub_answers.checked_answers("a file", "json_bytes"),
    ):
        pass


def test_no_redirect_is_followed_to_see_whether_the_hub_answers(standin: StandIn) -> None:
    """urllib asked for the next one with GET, and read its answer to the end: 3 GB of memory."""
    standin.faults = Faults(status={"/": 302}, headers={"Location": f"{standin.endpoint}/elsewhere"})
    hub.reach()
    assert [request[:2] for request in standin.requests] == [("HEAD", "/")]


@pytest.mark.usefixtures("content")
def test_what_cannot_be_checked_is_not_fetched(standin: StandIn) -> None:
    """It stayed in the cache, and a later command used it."""
    standin.faults = Faults(unhashed=True)
    for _ in range(2):
        with pytest.raises(WeightsError, match=r"states no hash of .*, so that it cannot be checked"):
            load_clip(NAME, "plain")
    assert not any("/resolve/" in path for _, path, _ in standin.requests)
