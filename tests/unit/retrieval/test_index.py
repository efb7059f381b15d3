"""Indexes of folders: what is found, what a second build does, what is refused."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from torch import Tensor

from dear.errors import DataError, OutputError, SettingsError, UnknownNameError
from dear.retrieval.build import build_index, open_to_write
from dear.retrieval.index import Index, open_index, pair_weights
from tests.helpers.errors import refuses
from tests.unit.retrieval.solid import SHADES, Plain, gallery, paint


def paths(index: Path, query: Path, weights: dict[str, float], **options: object) -> list[str]:
    hits = open_index(index).query_image(Plain(), query, weights, **options)  # type: ignore[arg-type]
    return [hit.path for hit in hits]


def test_neighbors_by_each_feature(tmp_path: Path) -> None:
    folder, out = gallery(tmp_path / "images"), tmp_path / "index"
    built = build_index(Plain(), folder, out)
    assert (built.files, built.encoded, built.broken) == (8, 8, {})
    red = folder / "red.png"
    # Red's cosine is 1 with the other red one, 0.89 with orange, 0 with green and blue.
    assert paths(out, red, {"color": 1}, count=3) == ["wide/red.png", "orange.png", "wide/orange.png"]
    assert sorted(paths(out, red, {"class": 1}, count=3)) == ["blue.png", "green.png", "orange.png"]
    mixed = open_index(out).query_image(Plain(), red, {"class": 3, "color": 1}, count=2)
    # Orange square: (3 * 1 + 0.894) / 4; wide red: (3 * cos of (20, 20) and (20, 40) + 1) / 4.
    assert [hit.path for hit in mixed] == ["orange.png", "wide/red.png"]
    assert mixed[0].score == pytest.approx((3 + 0.8933) / 4, abs=1e-3)
    assert mixed[1].score == pytest.approx((3 * 0.9487 + 1) / 4, abs=1e-3)
    assert mixed[1].by == pytest.approx({"class": 0.9487, "color": 1}, abs=1e-3)


def test_a_second_build_encodes_only_what_is_new(tmp_path: Path) -> None:
    folder, out = gallery(tmp_path / "images"), tmp_path / "index"
    build_index(Plain(), folder, out)
    again, encoder = build_index(Plain(), folder, out), Plain()
    assert (again.added, again.changed, again.removed, again.unchanged, again.encoded) == (0, 0, 0, 8, 0)
    os.utime(folder / "blue.png", ns=(1, 1))  # touched, not changed
    (folder / "red.png").rename(folder / "moved.png")
    paint(folder / "green.png", "green", 60)
    paint(folder / "new.png", "orange", 60)
    paint(folder / "copy.png", "orange", 60)
    built = build_index(encoder, folder, out)
    assert (built.added, built.changed, built.removed, built.unchanged) == (3, 2, 1, 5)
    assert built.encoded == encoder.seen == 2  # the wide green and the wide orange; the copy shares its row
    assert (built.files, built.rows) == (10, 10)  # 8 old rows, of which the green square's is dead, and 2
    found = open_index(out).query_image(Plain(), folder / "wide" / "red.png", {"color": 1}, count=4)
    assert found[0].path == "moved.png"
    assert ("copy.png", ("new.png",)) in [(hit.path, hit.copies) for hit in found]


def test_an_interrupted_build_keeps_what_it_has_encoded(tmp_path: Path) -> None:
    """Features that are not centered: a commit waits for no more."""
    encoder, plain = Plain(), Plain()
    encode = encoder.images

    def interrupt(views: Tensor) -> Tensor:
        if encoder.seen >= 4:
            raise KeyboardInterrupt
        return encode(views)

    encoder.images = interrupt  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        build_index(encoder, gallery(tmp_path / "in"), tmp_path / "index", batch=2)
    done = build_index(plain, tmp_path / "in", tmp_path / "index", batch=2)
    assert (encoder.seen, plain.seen, done.rows, done.files) == (4, 4, 8, 8)
    build_index(Plain(), tmp_path / "in", tmp_path / "anew")
    for color in SHADES:
        query = tmp_path / "in" / f"{color}.png"
        assert paths(tmp_path / "index", query, {"color": 1.0}) == paths(
            tmp_path / "anew", query, {"color": 1.0}
        )


def test_a_folder_without_a_readable_image(tmp_path: Path) -> None:
    folder, out = tmp_path / "images", tmp_path / "index"
    folder.mkdir()
    (folder / "text.jpg").write_text("not an image")
    for _ in range(2):
        refuses(DataError, "text.jpg", build_index, Plain(), folder, out)
        refuses(DataError, "is empty", open_index, out)
    paint(folder / "red.png", "red", 20)
    assert build_index(Plain(), folder, out).partly


def test_what_is_refused(tmp_path: Path) -> None:
    folder, out = gallery(tmp_path / "images"), tmp_path / "index"
    build_index(Plain(), folder, out)
    refuses(DataError, "of the folder", build_index, Plain(), gallery(tmp_path / "others"), out)
    index = open_index(out)
    query = dict(zip(("class", "color"), Plain().texts(["red"])[0], strict=True))
    refuses(UnknownNameError, "'color'", index.query, query, {"colors": 1})
    refuses(SettingsError, "positive", index.query, query, {"color": -1})
    assert index.shares({"class": 3, "color": -1}) == {"class": 0.75, "color": -0.25}
    for names, weights in ((["color"], [1.0, 2.0]), (["color", "color"], None), ([], None)):
        with pytest.raises(SettingsError):
            pair_weights(names, weights)
    for text in ("", " \n"):  # which is near nothing, yet would get neighbors
        refuses(SettingsError, "is empty", index.query_text, Plain(), text, {"color": 1})
        query, words = folder / "blue.png", {"color": text}
        refuses(SettingsError, "is empty", index.query_image, Plain(), query, {"color": 1}, words=words)
    with open_to_write(out, {}), pytest.raises(OutputError, match="another process"):
        build_index(Plain(), folder, out)


def found(index: Index, query: Path, **options: int) -> set[str]:
    hits = index.query_image(Plain(), query, {"color": 1}, **{"count": 100} | options)
    return {hit.path for hit in hits}


def test_an_opened_index_follows_builds(tmp_path: Path) -> None:
    folder, out = gallery(tmp_path / "images"), tmp_path / "index"
    build_index(Plain(), folder, out)
    index, query = open_index(out), paint(tmp_path / "query.png", "red", 60)
    everything = {str(path.relative_to(folder)) for path in folder.rglob("*.png")}
    assert found(index, query) == everything
    (folder / "blue.png").unlink()  # too few to be thrown out
    assert build_index(Plain(), folder, out).rows == 8
    everything.remove("blue.png")
    assert found(index, query) == everything

    paint(folder / "new.png", "orange", 60)
    (folder / "green.png").unlink()
    during = list[set[str]]()

    def ask(_step: str, done: int, of: int) -> None:  # in the middle of a build
        if done == of:
            during.append(found(index, query))

    assert build_index(Plain(), folder, out, progress=ask).rows == 7  # a new generation
    assert during == [everything | {"new.png"}]  # removed files go last
    assert found(index, query) == everything - {"green.png"} | {"new.png"}


def test_an_opened_index_that_is_removed_and_made_anew(tmp_path: Path) -> None:
    folder, out = gallery(tmp_path / "images"), tmp_path / "index"
    build_index(Plain(), folder, out)
    index, query = open_index(out), paint(tmp_path / "query.png", "red", 60)
    shutil.rmtree(out)
    refuses(DataError, "not an index", found, index, query)
    (folder / "blue.png").unlink()
    build_index(Plain(), folder, out)
    assert found(index, query) == {str(path.relative_to(folder)) for path in folder.rglob("*.png")}
    shutil.rmtree(out)
    build_index(Plain("other"), folder, out)
    refuses(DataError, "another", found, index, query)


def test_parquet_has_every_file_and_its_vectors(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="the extra `datasets` is not installed")
    folder, out = gallery(tmp_path / "images"), tmp_path / "index"
    paint(folder / "wide" / "copy.png", "red", 20)
    (folder / "broken.png").write_bytes(b"no image")
    build_index(Plain(), folder, out)
    index, file = open_index(out), tmp_path / "out" / "index.parquet"
    assert index.export_parquet(file) == 9
    table = parquet.read_table(file)
    assert json.loads(table.schema.metadata[b"index"])["identity"] == "plain"
    rows = {row["path"]: row for row in table.to_pylist()}
    assert rows.keys() == {str(path.relative_to(folder)) for path in folder.rglob("*.png")} - {"broken.png"}
    wide = rows["wide/green.png"]
    assert (wide["class"], rows["red.png"]["class"]) == ("wide", "")
    assert wide["size"] == (folder / "wide" / "green.png").stat().st_size
    # Twice as wide as high: 1 and 2 over the root of 5.
    assert wide["vector_class"] == pytest.approx([0.4472, 0.8944, 0, 0, 0], abs=1e-3)
    assert wide["vector_color"] == pytest.approx([0, 1, 0, 0, 0], abs=1e-3)
    assert rows["red.png"]["sha256"] == rows["wide/copy.png"]["sha256"]
    hits = index.query_image(Plain(), folder / "orange.png", {"color": 1}, count=20, itself=True)
    for hit in hits:  # the cosines of what was written are the scores
        a, b = (np.asarray(rows[path]["vector_color"]) for path in ("orange.png", hit.path))
        assert a @ b / np.linalg.norm(a) / np.linalg.norm(b) == pytest.approx(hit.score, abs=1e-3)


def test_a_hit_names_as_many_copies_as_are_asked_for(tmp_path: Path) -> None:
    """The others are counted."""
    folder, encoder = gallery(tmp_path / "images"), Plain()
    paths = ("copy.png", "red.png", "wide/copy.png")
    for path in paths:
        paint(folder / path, "red", 20)
    build_index(encoder, folder, tmp_path / "index")
    index = open_index(tmp_path / "index")
    vectors = dict(zip(encoder.features, encoder.texts(["red"])[0], strict=True))
    for most in range(4):
        (hit,) = (hit for hit in index.query(vectors, count=80, copies=most) if hit.path in paths)
        assert (len(hit.copies), hit.more_copies) == (min(2, most), 2 - min(2, most))


@pytest.mark.skipif(os.name == "nt", reason="names are UTF-16 there")
def test_any_name_and_any_date(tmp_path: Path) -> None:
    """Names that are not UTF-8, of a file, of a class and of the folder itself; the years 2300 and 1906."""
    folder, place = tmp_path / os.fsdecode(b"bl\xe9u"), tmp_path / "index"
    odd = [os.fsdecode(name) for name in (b"caf\xe9.png", b"gr\xfcn/1.png", b"new\nline.png", b"100%.png")]
    for width, name in enumerate([*odd, "a.png", "b.png"], start=20):
        paint(tmp_path / "images" / str(width) / "x.png", "red", width)
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.move(tmp_path / "images" / str(width) / "x.png", folder / name)
    (folder / os.fsdecode(b"br\xf6ken.png")).write_bytes(b"no image")
    os.utime(folder / "a.png", (10_413_792_000, 10_413_792_000))
    os.utime(folder / "b.png", (-2_000_000_000, -2_000_000_000))
    built = build_index(Plain(), folder, place)
    assert (built.files, [*built.broken]) == (6, [os.fsdecode(b"br\xf6ken.png")])
    again = build_index(Plain(), folder, place)
    assert (again.changed, again.encoded) == (0, 0)
    index = open_index(place)
    hits = index.query_image(Plain(), folder / odd[0], {"class": 1.0}, itself=True)
    assert {hit.path for hit in hits} == {*odd, "a.png", "b.png"}
    assert index.folder == folder
    (folder / odd[0]).unlink()
    assert build_index(Plain(), folder, place).removed == 1
