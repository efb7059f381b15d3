"""Records may name any file as a picture, as often as they like: what is read of it is bounded."""

import os
from pathlib import Path

import pytest
from PIL import Image

from dear.evaluation.mistakes import content_hash
from dear.evaluation.schema import Mistake
from dear.report import run_mistakes as module
from dear.report.run_mistakes import LARGEST


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files that are read as a whole."""
    real, paths = module.read_image, list[Path]()
    monkeypatch.setattr(module, "read_image", lambda path: paths.append(path) or real(path))
    return paths


def picture(folder: Path, name: str, sha256: str) -> Image.Image | None:
    images = module.TestedImages("tools", "identity", str(folder))
    return images.picture(Mistake(0, 0, 1, 0.9, 0.1, name, sha256))


def test_a_file_is_read_once_whatever_hashes_and_paths_it_has(tmp_path: Path, read: list[Path]) -> None:
    """Each of 384 examples with a hash of its own read a file of 500 MB again."""
    path = tmp_path / "a.png"
    Image.new("RGB", (7, 11), (10, 200, 30)).save(path)
    (tmp_path / "link.png").symlink_to(path)
    os.link(path, tmp_path / "hard.png")
    for number in range(20):
        assert picture(tmp_path, "a.png", f"{number:016x}") is None
    sha256 = content_hash(path.read_bytes())
    for name in ("a.png", "link.png", "hard.png", f"../{tmp_path.name}/a.png"):
        shown = picture(tmp_path, name, sha256)
        assert shown is not None
        assert shown.getpixel((3, 5)) == (10, 200, 30)
    assert read == [path]
    Image.new("RGB", (9, 11)).save(path)  # another state
    assert picture(tmp_path, "a.png", sha256) is None
    assert picture(tmp_path, "a.png", content_hash(path.read_bytes())) is not None
    assert len(read) == 2


@pytest.mark.parametrize(("start", "size"), [(b"\x89PNG\r\n\x1a\n", LARGEST + 1)])
def test_what_no_page_shows_is_not_read(start: bytes, size: int, tmp_path: Path, read: list[Path]) -> None:
    path = tmp_path / "a.png"
    with path.open("wb") as file:
        file.write(start)
        file.truncate(size)
    assert picture(tmp_path, "a.png", "0" * 16) is None
    assert read == []


@pytest.mark.parametrize("name", ["gone.png", "zero\0byte.png", "a" * 5000])
def test_names_that_no_picture_has(name: str, tmp_path: Path, read: list[Path]) -> None:
    assert picture(tmp_path, name, "0" * 16) is None
    assert read == []
