"""Pictures at addresses: what is read of a store and of a web server, and what is not."""

import io
import threading
import warnings
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from uuid import uuid4

import fsspec
import pytest
import torch
from PIL import Image

from dear.data.images.decode import decode
from dear.data.loading import load_images
from dear.data.settings import DataSettings
from dear.errors import DataError, DearError
from dear.limits import LimitError
from dear.reading.files import read_bytes, walk_folders
from dear.reading.remote import as_path
from tests.helpers.errors import refuses
from tests.unit.data.photos import COUNTS, class_folders, load, paths, picture


@pytest.fixture
def settings(tmp_path: Path) -> DataSettings:
    return DataSettings(cache=str(tmp_path / "cache"))


@pytest.fixture
def local(tmp_path: Path) -> Path:
    return class_folders(tmp_path / "photos", COUNTS)


@pytest.fixture
def store(local: Path) -> Iterator[str]:
    """The address of the same folder in a store."""
    system, top = fsspec.filesystem("memory"), f"/{uuid4().hex}/photos"
    system.put(str(local), top, recursive=True)
    yield f"memory:/{top}"
    system.rm(top.rsplit("/", 1)[0], recursive=True)


def put(address: str, content: bytes) -> str:
    fsspec.filesystem("memory").pipe(address.removeprefix("memory:/"), content)
    return address


def png(level: int) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (7, 5), (level, level, level)).save(file, "PNG")
    return file.getvalue()


class Handler(BaseHTTPRequestHandler):
    """Serves /N.png, a picture of level N; /away and /here lead to a picture on another host, and on this.
    /bomb.zip says of itself that it has a terabyte.
    """

    served: ClassVar[list[str]] = []
    bomb: ClassVar[bytes] = b""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        self.served.append(f"{self.command} {self.path} {self.headers['Host']}")
        name, port = self.path.strip("/"), self.server.server_address[1]
        if name in ("away", "here"):
            self.send_response(302)
            self.send_header("Location", f"http://localhost:{port}/5.png" if name == "away" else "/5.png")
            self.end_headers()
        elif name == "bomb.zip":
            self.send_response(200)
            if self.command == "HEAD":
                self.send_header("Content-Length", str(10**12))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(self.bomb)
        elif name.endswith(".png"):
            content = png(int(name.removesuffix(".png")))
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content)
        else:
            self.send_error(404)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    pytest.importorskip("aiohttp", reason="https needs the extra remote")
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def test_a_folder_of_a_store_is_the_same_data_as_here(
    store: str, local: Path, settings: DataSettings
) -> None:
    there, here = load(store, settings), load(local, settings)
    assert (there.classnames, there.name) == (here.classnames, here.name)
    assert paths(there) == paths(here)
    for part in ("train", "test"):
        all_items = torch.arange(len(getattr(there, part)))
        pairs = zip(*(getattr(data, part).load(all_items) for data in (there, here)), strict=True)
        assert all(torch.equal(*pair) for pair in pairs)
    assert there.train.identity == here.train.identity


def test_a_zip_of_a_store(store: str, local: Path, settings: DataSettings) -> None:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for path in local.rglob("*.png"):
            archive.write(path, path.relative_to(local).as_posix())
    data = load(put(f"{store}.zip", file.getvalue()), settings)
    assert paths(data) == paths(load(local, settings))


def test_a_server_does_not_say_how_large_a_zip_is(
    server: str, settings: DataSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("ant/0.png", bytes(2 * 10**6))
    monkeypatch.setattr(Handler, "bomb", file.getvalue())
    monkeypatch.setattr("dear.data.sources.archive.MODEST", 10**6)
    refuses(LimitError, "UNPACKED_RATIO", load, f"{server}/bomb.zip", settings)
    assert not [*tmp_path.rglob("*.png")]


def test_broken_and_missing_pictures_are_told_as_local_ones(store: str, local: Path) -> None:
    put(f"{store}/ant/broken.png", b"no picture")
    (local / "ant" / "broken.png").write_bytes(b"no picture")
    messages = []
    for folder in (as_path(store), local):
        for name in ("ant/broken.png", "ant/gone.png"):
            with pytest.raises(DataError) as caught:
                decode(folder / name)
            messages.append(str(caught.value).replace(str(folder), "FOLDER").replace(" or directory", ""))
    assert messages[:2] == messages[2:]


def test_no_more_than_the_limit_is_taken(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    content = png(3)
    address = as_path(put(f"{store}/ant/large.png", content))
    monkeypatch.setenv("DEAR_LIMIT_IMAGE_BYTES", str(len(content)))
    assert read_bytes(address, "image_bytes") == content
    monkeypatch.setenv("DEAR_LIMIT_IMAGE_BYTES", str(len(content) - 1))
    refuses(LimitError, "above the limit", read_bytes, address, "image_bytes")
    assert len(address.fetch(11)) == 11


def test_a_table_here_names_pictures_anywhere(
    store: str, server: str, local: Path, settings: DataSettings
) -> None:
    rows = [
        f"{store}/ant/1.png,ant",
        f"{server}/77.png,bee",
        f"{local}/ant/2.png,ant",
        "photos/ant/3.png,bee",
    ]
    table = local.parent / "table.csv"
    table.write_text("path,label\n" + "\n".join(rows))
    data = load(table, settings)
    names = paths(data)["train"] | paths(data)["test"]
    assert names == {row.rsplit(",", 1)[0] for row in rows}
    levels = {
        path: int(image.load(torch.tensor([index]))[0].float().mean())
        for image in (data.train, data.test)
        for index, path in enumerate(image.paths)
    }
    assert [levels[row.rsplit(",", 1)[0]] for row in rows] == [1, 77, 2, 3]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("https://example.org/a.png", "at another place than the table"),
        ("/etc/a.png", "leads out of the image folder"),
        ("../../a.png", "leads out of the image folder"),
    ],
)
def test_a_table_of_a_stranger_reads_of_its_own_place_alone(
    row: str, message: str, store: str, settings: DataSettings
) -> None:
    table = put(f"{store}/table.csv", f"path,label\n{row},ant\n".encode())
    refuses(DataError, message, load, table, settings)
    table = put(f"{store}/table.csv", f"path,label\n{store}/ant/1.png,ant\nant/2.png,ant\n".encode())
    assert len(load(table, settings).train) == 1


def test_a_table_in_a_folder_that_was_given_reads_no_address(
    store: str, tmp_path: Path, settings: DataSettings
) -> None:
    """Nor do names of folders in a zip that look like one."""
    folder = tmp_path / "given"
    picture(folder / "memory:" / f"{store.removeprefix('memory://')}" / "ant" / "1.png", level=200)
    with warnings.catch_warnings(action="ignore"):
        (only,) = load_images(str(folder), settings).train.load(torch.tensor([0]))
    assert int(only.float().mean()) == 200
    (tmp_path / "listed").mkdir()
    (tmp_path / "listed" / "table.csv").write_text(f"path,label\n{store}/ant/1.png,ant\n")
    refuses(DataError, "table.csv", load, tmp_path / "listed", settings)


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("file:///etc/passwd", "is on this machine"),
        ("github://a/b", "no such address is read"),
        ("s3://", "has a host or bucket"),
        ("s3://bucket//a.png", "no empty or . part"),
        ("memory://nowhere", "does not exist"),
    ],
)
def test_what_is_no_address_to_read(address: str, message: str, settings: DataSettings) -> None:
    refuses(DearError, message, load, address, settings)


def test_the_package_of_a_store_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "s3fs", None)
    refuses(DataError, "s3fs", read_bytes, as_path("s3://bucket/a.png"), "image_bytes")


def test_a_web_server_leads_to_no_other_host_of_the_network(server: str) -> None:
    assert read_bytes(as_path(f"{server}/here"), "image_bytes") == png(5)
    Handler.served.clear()
    refuses(DataError, "localhost", read_bytes, as_path(f"{server}/away"), "image_bytes")
    assert Handler.served
    assert not [request for request in Handler.served if "localhost" in request]
    refuses(DataError, "No such file", read_bytes, as_path(f"{server}/gone"), "image_bytes")


def test_the_listing_of_a_folder_is_asked_for_once(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing of each file, which would be a request of its own."""
    kind, asked = fsspec.get_filesystem_class("memory"), list[str]()
    for name in ("find", "info"):
        original = getattr(kind, name)

        def counted(*arguments: Any, original: Any = original, name: str = name, **options: Any) -> Any:
            asked.append(name)
            return original(*arguments, **options)

        monkeypatch.setattr(kind, name, counted)
    folder = as_path(store).listed()
    assert asked.count("find") == 1
    asked.clear()
    files = [file for _, _, names in walk_folders(folder) for file in names]
    assert len(files) == sum(COUNTS.values())
    assert all((folder / "ant" / f"{number}.png").stat().st_size > 0 for number in range(COUNTS["ant"]))
    assert (folder / "ant").is_dir()
    assert not (folder / "bee").exists()
    assert asked == []


@pytest.fixture
def bucket(local: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of the same folder in a bucket of a stand-in for S3 on this machine."""
    moto = pytest.importorskip("moto.server", reason="the stand-in for S3 is the package moto[server]")
    s3fs = pytest.importorskip("s3fs", reason="S3 needs the package s3fs")
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    s3fs.S3FileSystem.clear_instance_cache()
    system = s3fs.S3FileSystem()
    system.mkdir("bucket")
    system.put(str(local), "bucket/photos", recursive=True)
    yield "s3://bucket/photos"
    s3fs.S3FileSystem.clear_instance_cache()
    server.stop()


def test_a_bucket(bucket: str, local: Path, settings: DataSettings) -> None:
    there, here = load(bucket, settings), load(local, settings)
    assert there.train.identity == here.train.identity
    refuses(DataError, "No such file", read_bytes, as_path(f"{bucket}/gone.png"), "image_bytes")
    refuses(DataError, "does not exist", load, "s3://nowhere/photos", settings)
    empty = as_path(f"{bucket}/empty.png")
    fsspec.filesystem("s3").pipe("bucket/photos/empty.png", b"")
    refuses(DataError, "empty.png", decode, empty)
