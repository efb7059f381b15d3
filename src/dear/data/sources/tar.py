"""The samples of a tar: those of WebDataset, or the images and lists of any folder that was packed."""

import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import IO, Any, BinaryIO, NamedTuple, cast

from dear.data.images import decode, video
from dear.data.sources import table
from dear.data.sources.paths import require_inside
from dear.errors import DataError
from dear.limits import require_at_most
from dear.reading.files import CORRECTIONS, decoded, is_passed_over
from dear.reading.plain import parse_json

LABEL, FACTS, TEXT = "cls", "json", "txt"
"""Members beside the image of a sample: its class, facts of it, and a text, which may be its class."""
LONGEST = 2**14
"""Bytes of a label."""
LISTS = (*table.SUFFIXES, ".json", ".txt")
"""Suffixes of lists of images, which are read of a folder that was packed."""

Members = Mapping[PurePosixPath, tarfile.TarInfo]


class Sample(NamedTuple):
    """An image or a list of images: its path, its bytes, what its label is called (None for one without) and
    what else is known of it.
    """

    path: str
    content: IO[bytes]
    label: Any = None
    facts: Mapping[str, Any] = {}


def read_tar(archive: Path, content: BinaryIO, label: str | None) -> Iterator[Sample]:
    """The images of a tar in order, each with the label that the members of its sample have, and its lists.

    A sample is the files whose names are the same up to the first dot. Its label is the text of its .cls,
    else what its .json has as label, class, ..., else the text of its .txt; ``label`` names another of these
    or another key. What is beside the image of a labeled sample, such as 0001.mask.png, is left out.

    Raises DataError for a tar that is damaged or compressed, or has a link or a member outside its folder.
    """
    try:
        with tarfile.open(fileobj=content, mode="r:") as file:
            members = _members(archive, file)
            beside = dict[str, dict[str, tarfile.TarInfo]]()
            for path, info in members.items():
                if (kind := path.suffix.lower().lstrip(".")) in (LABEL, FACTS, TEXT):
                    beside.setdefault(_key(path), {})[kind] = info
            whole = {_key(path) for path in members if _is_image(path) and path.name.count(".") == 1}
            keys = {_key(path) for path in members if _is_image(path)}
            for path, info in members.items():
                key = _key(path)
                of_sample = beside.get(key, {}) if key in keys else {}
                if _is_image(path) and not (of_sample and key in whole and path.name.count(".") > 1):
                    where = f"{archive}, {path.as_posix()!r:.250}"
                    facts = {
                        kind: _read(where, kind, _extract(file, member)) for kind, member in of_sample.items()
                    }
                    yield Sample(path.as_posix(), _extract(file, info), *_label(facts, label))
                elif path.suffix.lower() in LISTS and not of_sample:
                    yield Sample(path.as_posix(), _extract(file, info))
    except (tarfile.TarError, EOFError, OverflowError) as error:
        raise DataError(
            f"{archive} is damaged or not a tar without compression ({error}): copy or create it again."
        ) from error


def _is_image(path: PurePosixPath) -> bool:
    return path.suffix.lower() in decode.SUFFIXES or video.is_video(path.as_posix())


def _key(path: PurePosixPath) -> str:
    """The name of a sample: its path up to the first dot of the name."""
    return (path.parent / path.name.partition(".")[0]).as_posix()


def _members(archive: Path, file: tarfile.TarFile) -> Members:
    """The files of a tar by their paths, but those that are passed over."""
    members = dict[PurePosixPath, tarfile.TarInfo]()
    for info in file:
        path, where = PurePosixPath(info.name), f"{archive}, {info.name!r:.250}"
        require_inside(where, info.name)
        faults = {
            "is a link, which is not followed: pack the file itself": info.issym() or info.islnk(),
            "is neither a file nor a folder: pack files alone": not (info.isreg() or info.isdir()),
            "has holes, and unpacks to any size: pack it without --sparse": info.issparse(),
            "is in the tar twice: pack it once": path in members and not info.isdir(),
        }
        if fault := next(filter(faults.get, faults), None):
            raise DataError(f"{where} {fault}.")
        outer = path.parts[:-1] if path.name == CORRECTIONS else path.parts
        if info.isreg() and not any(map(is_passed_over, outer)):
            members[path] = info
    return members


def _extract(file: tarfile.TarFile, info: tarfile.TarInfo) -> IO[bytes]:
    return cast(IO[bytes], file.extractfile(info))


def _read(where: str, kind: str, content: IO[bytes]) -> Any:
    """What a member beside an image says. Raises DataError."""
    if kind == FACTS:
        text = content.read()
        require_at_most("json_bytes", len(text), where)
        facts = parse_json(text, f"{where}, .{kind}", file_names=True)
        return facts if isinstance(facts, dict) else {}
    text = content.read(LONGEST + 1)
    if len(text) > LONGEST:
        return None if kind == TEXT else text.decode(errors="replace")
    return decoded(f"{where}, .{kind}", text).strip()


def _label(members: Mapping[str, Any], label: str | None) -> tuple[Any, Mapping[str, Any]]:
    """The label of a sample, and what its .json says."""
    facts: Mapping[str, Any] = members.get(FACTS, {})
    known = {**facts, **{kind: text for kind, text in members.items() if kind != FACTS}}
    names = [label] if label is not None else [LABEL, *table.LABELS, TEXT]
    return next((known[name] for name in names if known.get(name) is not None), None), facts
