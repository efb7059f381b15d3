"""Files of the hub, from a stand-in of it: announced, bounded, resumed, compared, and used offline."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import save
from torch import Tensor

from dear.backbone import hub, weights
from dear.backbone.choice import BackboneName
from dear.backbone.load import find_weights, load_clip
from dear.errors import WeightsError
from dear.limits import LimitError
from tests.standin_hub import CHUNK, COMMIT, StandIn, sha256
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


def test_a_first_fetch_is_announced_and_a_second_asks_nobody(
    standin: StandIn, content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    clip = load_clip(NAME, "plain")
    assert clip.identity.sha256 == load_clip(NAME, "random:3").identity.sha256
    told = [line for line in capsys.readouterr().err.splitlines() if line.startswith("dear:")]
    assert told == [
        f"dear: fetching {NAME}/plain once from {standin.endpoint}/{CLIP}, {len(content) / 1e6:.0f} MB; "
        f"it is kept in {tmp_path / 'cache'}"
    ]
    asked, cache = len(standin.requests), tree(tmp_path / "cache")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert load_clip(NAME, "plain").identity == clip.identity
    assert len(standin.requests) == asked
    assert capsys.readouterr().err == ""
    assert tree(tmp_path / "cache") == cache  # so that it may be read-only


def test_a_corrupt_download_is_refused_and_removed(standin: StandIn, content: bytes, tmp_path: Path) -> None:
    standin.faults.corrupt = True
    with pytest.raises(WeightsError, match=rf"{FILE} was damaged"):
        load_clip(NAME, "plain")
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.name in (FILE, sha256(content))]
    standin.faults.corrupt = False
    load_clip(NAME, "plain")


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


@pytest.mark.usefixtures("content")
def test_a_download_that_is_cut_goes_on_where_it_ended(standin: StandIn) -> None:
    standin.faults.cut = 100 * CHUNK
    load_clip(NAME, "plain")
    assert standin.downloads() == [None, f"bytes={100 * CHUNK}-"]


@pytest.mark.usefixtures("content")
@pytest.mark.parametrize(("code", "part"), [(404, "/resolve/"), (429, "/cdn/"), (500, "/resolve/")])
def test_an_error_of_the_hub_is_told_in_one_line(code: int, part: str, standin: StandIn) -> None:
    standin.faults.status = {part: code}
    with pytest.raises(WeightsError, match=rf"cannot download {NAME}/plain .*local path") as caught:
        load_clip(NAME, "plain")
    assert "\n" not in str(caught.value)


def test_a_hub_that_does_not_answer_is_told_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The client alone tries again for half a minute."""
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda _: pytest.fail("it waits"))
    with pytest.raises(WeightsError, match=rf"cannot download .*hf download {CLIP}"):
        hub.fetch(CLIP, ["config.json"])


def test_the_first_file_that_a_repository_has_is_used(standin: StandIn) -> None:
    standin.files[CLIP] = {"b.json": b"{}", "c.json": b"[]"}
    assert hub.fetch(CLIP, ["a.json", "b.json", "c.json"]).read_bytes() == b"{}"
    with pytest.raises(hub.MissingError, match=r"has no a\.json and no d\.json"):
        hub.fetch(CLIP, ["a.json", "d.json"])


def test_what_another_program_has_cached_does_not_decide_the_format(
    standin: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    standin.files[CLIP] = {FILE: b"1", "pickled.bin": b"2"}
    pickled = hub.fetch(CLIP, ["pickled.bin"])
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert hub.fetch(CLIP, [FILE, "pickled.bin"]) == pickled
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    assert hub.fetch(CLIP, [FILE, "pickled.bin"]).read_bytes() == b"1"


def test_no_pickle_is_downloaded_for_a_file_that_names_the_repository(standin: StandIn) -> None:
    standin.files[CLIP] = {"pickled.bin": b"2"}
    with pytest.raises(hub.MissingError, match="Only safetensors are downloaded"):
        hub.fetch(CLIP, [FILE, "pickled.bin"], safe_only=True)
    assert not standin.downloads()


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


@pytest.mark.usefixtures("content")
@pytest.mark.parametrize("tag", ["plain", "PLAIN"])
def test_weights_with_a_packaged_role_table_are_of_its_commit(
    standin: StandIn, monkeypatch: pytest.MonkeyPatch, tag: str
) -> None:
    """In whatever spelling open_clip takes."""
    monkeypatch.setitem(weights.COMMITS, BackboneName(NAME, "plain"), COMMIT)
    find_weights(NAME, tag)
    assert load_clip(NAME, tag).identity.pretrained == "plain"
    asked = [path for _, path, _ in standin.requests if path.startswith(f"/{CLIP}")]
    assert asked
    assert all(COMMIT in path for path in asked)
