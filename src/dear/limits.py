"""Limits on what comes from others: images, weights and bundles of a hub, requests, class names.

A reader compares with its limit before it unpacks, allocates or loops. A variable changes a limit for the
command line, the Python API, worker processes and the server alike.
"""

import os
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from dear.errors import DearError, SettingsError


@dataclass(frozen=True)
class Limit:
    """A limit: its default, what it limits, in the plural with its unit ("bytes of a JSON file"), and what
    happens without it.
    """

    default: int
    what: str
    without: str


class LimitError(DearError):
    """Input beyond a limit; the message names the variable that changes the limit."""


LIMITS: Final = MappingProxyType({
    "image_bytes": Limit(512 * 2**20, "bytes of an image file", "one file of a folder fills the memory"),
    "remote_bytes": Limit(2**30, "bytes of a remote file that is no image", "a server sends without end"),
    "image_pixels": Limit(120_000_000, "pixels of an image", "40 KB are decoded to gigabytes"),
    "image_scans": Limit(64, "scans of a progressive JPEG", "a small upload is decoded for minutes"),
    "video_frames": Limit(
        20_000, "frames of a video that are decoded", "a video without key frames is decoded for hours"
    ),
    "unpacked_ratio": Limit(25, "times the archive's own size when unpacked", "a small zip fills the disk"),
    "json_bytes": Limit(128 * 2**20, "bytes of a JSON file", "a model's configuration fills the memory"),
    "tensor_bytes": Limit(8 * 2**30, "bytes of a file of tensors", "a model of a hub fills the memory"),
    "bundle_bytes": Limit(2**30, "bytes of a bundle's tensors", "a bundle of a hub fills the memory"),
    "parameters": Limit(5_000_000_000, "parameters of a model", "a small configuration allocates terabytes"),
    "patches": Limit(4096, "patches of a model's pictures", "a small configuration takes hours"),
    "mask_values": Limit(
        2**28, "values in the masks of a method: layers times heads times squared tokens",
        "the settings of a bundle allocate terabytes",
    ),
    "class_name": Limit(1000, "characters of a class name or a template", "a name is tokenized for minutes"),
    "prompts": Limit(25_000, "class names, or templates times class names", "they are encoded for hours"),
    "request_classes": Limit(1000, "class names in one request", "one client holds up the others"),
    "request_classes_per_image": Limit(
        100, "class names in one request, if the method is CoCoOp", "one client holds up the others"
    ),
    "request_text": Limit(
        50_000, "characters of a list in a request, such as class names", "one client holds up the others"
    ),
})  # fmt: skip


def limit(name: str) -> int:
    """The limit in force: its environment variable, or its default. Raises SettingsError."""
    text = os.environ.get(variable(name))
    if text is None:
        return LIMITS[name].default
    if not (text.isascii() and text.isdigit() and 0 < int(text[:20]) < 2**63):
        raise SettingsError(f"{variable(name)} is {text[:40]!r}: it must be a whole number above 0.")
    return int(text)


def variable(name: str) -> str:
    """The environment variable that changes a limit."""
    return f"DEAR_LIMIT_{name.upper()}"


def require_at_most(name: str, value: int, where: object) -> None:
    """Raise LimitError for a value above a limit; ``where`` names the input."""
    maximum = limit(name)
    if value > maximum:
        raise LimitError(
            f"{where}: {value:,} {LIMITS[name].what}, above the limit of {maximum:,}. "
            f"Set {variable(name)} to raise it."
        )
