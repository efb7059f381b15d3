"""Frames of videos: which are read, that they show what was encoded, and what FFmpeg may not do."""

import os
import warnings
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from dear.adapters.labels import apply_labels
from dear.cli.predict import _paths
from dear.data.check import check_dataset
from dear.data.images import video as videos
from dear.data.images.decode import decode
from dear.data.images.photos import number_groups
from dear.data.images.video import list_frames
from dear.data.loading import load_dataset
from dear.data.settings import DataSettings
from dear.errors import DataError
from tests.helpers.errors import refuses

av = pytest.importorskip("av", reason="needs the extra video")

SIDE, RATE = 64, 8
COLORS = [(240, 20, 20), (20, 240, 20), (20, 20, 240), (240, 240, 20), (20, 240, 240), (240, 20, 240)]
COLORS += [(120, 120, 120), (250, 250, 250)]


def write_video(
    path: Path, pictures: Sequence[np.ndarray], codec: str = "libx264", rate: int = RATE, gop: int = 12
) -> Path:
    """A video of these pictures, eight in a second."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=rate, options={"g": str(gop)})
        stream.width = stream.height = SIDE
        stream.pix_fmt, stream.time_base = "yuv420p", Fraction(1, rate)
        for picture in pictures:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode())
    return path


def plain(colors: Sequence[tuple[int, int, int]] = tuple(COLORS)) -> list[np.ndarray]:
    return [np.full((SIDE, SIDE, 3), color, np.uint8) for color in colors]


def noise(seed: int, frames: int = 4) -> list[np.ndarray]:
    """Pictures that are alike, and unlike those of other seeds."""
    coarse = np.random.default_rng(seed).integers(20, 200, (8, 8, 3))
    large = np.kron(coarse, np.ones((8, 8, 1))).astype(np.uint8)
    return [large + 8 * number for number in range(frames)]


def color_of(frame: str) -> np.ndarray:
    return decode(Path(frame)).float().mean(dim=(1, 2)).numpy()


@pytest.mark.parametrize(
    ("name", "codec", "gop"),
    [("a.mp4", "libx264", 12), ("a.mkv", "libx264", 2), ("a.webm", "libvpx-vp9", 12), ("a.avi", "mpeg4", 3)],
)
def test_frames_are_the_middles_of_equal_parts(tmp_path: Path, name: str, codec: str, gop: int) -> None:
    file = write_video(tmp_path / name, plain(), codec, gop=gop)
    # Of 8 frames in a second, those shown at 1/8, 3/8, 5/8 and 7/8 are numbers 1, 3, 5 and 7.
    frames = list_frames(file, 4)
    assert frames == [f"{file}#t={time}" for time in ("0.125", "0.375", "0.625", "0.875")]
    for frame, number in zip(frames, (1, 3, 5, 7), strict=True):
        assert np.abs(color_of(frame) - COLORS[number]).max() < 6
    assert np.abs(color_of(list_frames(file, 1)[0]) - COLORS[4]).max() < 6  # at half a second
    everything = list_frames(file, 100)
    assert len(everything) == len(COLORS)
    for frame, color in zip(everything, COLORS, strict=True):
        assert np.abs(color_of(frame) - color).max() < 6
    assert np.abs(color_of(f"{file}#t=99.000") - COLORS[-1]).max() < 6  # behind its end


def test_times_count_from_a_start_that_is_not_zero(tmp_path: Path) -> None:
    file = write_video(tmp_path / "a.mts", [*plain() * 5], "mpeg2video", rate=25)
    frames = list_frames(file, 5)  # at 4, 12, 20, 28 and 36 of 40 frames, each the fifth of eight
    assert len(frames) == 5
    assert all(np.abs(color_of(frame) - COLORS[4]).max() < 6 for frame in frames)


def test_a_video_of_a_phone_held_upright_is_turned(tmp_path: Path) -> None:
    picture = np.zeros((SIDE, SIDE, 3), np.uint8)
    picture[:, : SIDE // 2, 0] = 240
    picture[:, SIDE // 2 :, 2] = 240
    file = write_video(tmp_path / "a.mp4", [picture] * 3)
    # The matrix of the track header (ISO/IEC 14496-12, 8.3.2) that turns it by a quarter, clockwise.
    one, minus_one, last = b"\0\1\0\0", b"\xff\xff\0\0", b"\x40\0\0\0"
    content, upright = file.read_bytes(), one + bytes(12) + one + bytes(12) + last
    track = content.index(b"tkhd")
    place = content.index(upright, track)
    turned = bytes(4) + one + bytes(4) + minus_one + bytes(16) + last
    file.write_bytes(content[:place] + turned + content[place + len(upright) :])
    shown = decode(Path(list_frames(file, 1)[0]))
    assert shown[0, 4].float().mean() > 200  # the left half, red, is on top
    assert shown[2, -4].float().mean() > 200


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Two classes of three videos and three photographs."""
    from PIL import Image

    folder = tmp_path / "photos"
    for label, name in enumerate(("cup", "ewer")):
        for number in range(3):
            write_video(folder / name / f"clip{number}.mp4", noise(10 * label + number))
            Image.fromarray(noise(100 + 10 * label + number)[0]).save(folder / name / f"photo{number}.png")
    return folder


def test_frames_of_a_video_are_images_of_one_group(photos: Path, settings: DataSettings) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        data = load_dataset(photos, DataSettings(frames=3, cache=settings.cache, test_share=0.34))
    assert len(data.train) + len(data.test) == 2 * (3 * 3 + 3)
    sides = [{path.split("#")[0] for path in part.paths if "#" in path} for part in (data.train, data.test)]
    assert all(sides)
    assert sides[0].isdisjoint(sides[1])  # no video is on both
    groups = dict(zip(data.train.paths, number_groups(data.train).tolist(), strict=True))
    for file in sides[0]:
        assert len({group for path, group in groups.items() if path.startswith(f"{file}#")}) == 1
    assert len({*groups.values()}) == len(sides[0]) + sum("#" not in path for path in groups)


def test_without_the_option_or_the_library_videos_are_told_and_left_out(
    photos: Path, settings: DataSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked = check_dataset(str(photos), settings)
    note = next(note for note in checked.notes if "video" in note)
    assert "6 videos" in note
    assert "docs/your-data.md#videos" in note
    assert sum(checked.counts.values()) == 6
    for module in ("dear.data.images.video", "dear.data.sources.frames"):
        monkeypatch.setattr(f"{module}.HAS_VIDEO", False)
    checked = check_dataset(str(photos), DataSettings(frames=3, cache=settings.cache))
    assert any("6 videos" in note and "[video]" in note for note in checked.notes)
    assert sum(checked.counts.values()) == 6
    for image in (photos / "cup").glob("*.png"):
        image.unlink()
    refuses(DataError, ("'cup'", "3 videos"), load_dataset, photos, settings)


def test_videos_in_a_table_and_in_python(photos: Path, settings: DataSettings) -> None:
    (photos / "list.csv").write_text("path,label\n" + "".join(f"cup/clip{n}.mp4,cup\n" for n in range(3)))
    settings = DataSettings(frames=2, cache=settings.cache, test_share=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        listed = load_dataset(photos / "list.csv", settings)
        given = load_dataset(([photos / f"cup/clip{n}.mp4" for n in range(3)], ["cup"] * 3), settings)
    assert len(listed.train) == len(given.train) == 6
    refuses(DataError, "has no images", load_dataset, photos / "list.csv", DataSettings(cache=settings.cache))
    (photos / "list.csv").unlink()
    paths = [*_paths([str(photos / "cup")], 2)]
    assert len(paths) == 3 * 2 + 3
    assert paths[0].endswith("cup/clip0.mp4#t=0.125")  # of half a second


def test_a_correction_of_a_frame_is_read(photos: Path, settings: DataSettings, tmp_path: Path) -> None:
    settings = DataSettings(frames=2, cache=settings.cache, test_share=0)
    reviewed = tmp_path / "review.csv"
    reviewed.write_text(f"path,label\n{os.path.relpath(photos, tmp_path)}/cup/clip0.mp4#t=0.125,ewer\n")
    assert apply_labels(reviewed, photos, dataset=settings).answers == 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        data = load_dataset(photos, settings)
    labels = dict(zip(data.train.paths, data.train.labels.tolist(), strict=True))
    assert [labels[f"cup/clip0.mp4#t={time}"] for time in ("0.125", "0.375")] == [1, 0]


def test_a_damaged_video_is_one_bad_image(photos: Path, settings: DataSettings) -> None:
    (photos / "cup/clip0.mp4").write_bytes(b"no video")
    checked = check_dataset(str(photos), DataSettings(frames=2, cache=settings.cache))
    assert [*(checked.broken or {})] == ["cup/clip0.mp4#t=0.000"]
    assert str(photos) not in str(checked.broken)
    assert sum(checked.counts.values()) == 5 * 2 + 1 + 6


def test_groups_of_several_classes_are_told(photos: Path, settings: DataSettings) -> None:
    """A `clip0` of each class may be two clips: the user is told that they count as one group."""

    def notes(group: str) -> list[str]:
        options = DataSettings(frames=2, cache=settings.cache, group=group)
        return [note for note in check_dataset(str(photos), options).notes if "over classes" in note]

    (told,) = notes("clip[0-9]")
    assert "3 groups" in told
    assert "'clip0' is in cup, ewer" in told
    assert not notes("[^/]+/clip[0-9]")


def test_what_is_no_video_opens_no_other_file(tmp_path: Path) -> None:
    """Without the guard FFmpeg follows such a list to any file of the user."""
    write_video(tmp_path / "secret.mp4", plain())
    file = tmp_path / "list.mp4"
    file.write_text(f"ffconcat version 1.0\nfile {tmp_path}/secret.mp4\n")
    with open(file, "rb") as opened, av.open(opened, options={"safe": "0"}) as container:
        assert container.format.name == "concat"
    (frame,) = list_frames(file, 3)
    refuses(DataError, "list.mp4", decode, Path(frame))


def test_pixels_and_frames_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write_video(tmp_path / "a.mp4", plain(), gop=100)
    last = list_frames(file, 8)[-1]
    monkeypatch.setenv("DEAR_LIMIT_IMAGE_PIXELS", "4095")
    refuses(DataError, ("4,096", "DEAR_LIMIT_IMAGE_PIXELS"), decode, Path(last))
    monkeypatch.setenv("DEAR_LIMIT_IMAGE_PIXELS", "4096")
    decode(Path(last))
    monkeypatch.setenv("DEAR_LIMIT_VIDEO_FRAMES", "7")
    refuses(DataError, "DEAR_LIMIT_VIDEO_FRAMES", decode, Path(last))


def test_a_later_part_with_more_pixels_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The decoder itself has the limit, whatever the header says."""
    file = write_video(tmp_path / "a.mp4", plain())
    monkeypatch.setattr(videos, "require_at_most", lambda *_: None)
    monkeypatch.setenv("DEAR_LIMIT_IMAGE_PIXELS", "4095")
    refuses(DataError, "cannot read the video", decode, Path(f"{file}#t=0.000"))
