"""Classify images by a file of `dear export`, with onnxruntime, Pillow and numpy alone.

    python examples/classify_onnx.py classifier.onnx photo.jpg ...

The pixels are those of `dear predict`: upright, in sRGB, 8 bits, white behind transparency, then resized and
cut as the preprocessing of the model has it, which the file holds.
"""

import io
import json
import os
import sys
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageCms, ImageOps


def read_picture(path: str | Path) -> Image.Image:
    """An image file as an upright picture in 8-bit RGB."""
    with Image.open(path) as file:
        picture: Image.Image = ImageOps.exif_transpose(file)
        white_is_zero = getattr(file, "tag_v2", {}).get(262) == 0  # which Pillow minds in 8 bits alone
    if picture.mode.startswith("I;16"):
        levels = abs(65535.0 * white_is_zero - np.asarray(picture)) / 257  # of 65535 to 255
        picture = Image.fromarray(levels.round().astype(np.uint8))
    picture = convert_to_srgb(picture)
    if picture.has_transparency_data:
        picture = picture.convert("RGBA")
        picture = Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture)
    return picture.convert("RGB")


def convert_to_srgb(picture: Image.Image) -> Image.Image:
    """The picture with the colors of its embedded profile in sRGB, as a screen shows it. It stays as it is
    with 16 bits, with a damaged profile, and with one that is sRGB but for rounding.
    """
    profile, mode = picture.info.get("icc_profile"), picture.mode
    if not isinstance(profile, bytes) or mode not in ("RGB", "RGBA", "P", "L", "LA", "CMYK"):
        return picture
    mode = {"L": "L", "LA": "L", "CMYK": "CMYK"}.get(mode, "RGB")
    try:
        source, target = ImageCms.ImageCmsProfile(io.BytesIO(profile)), ImageCms.createProfile("sRGB")
        intent, flags = ImageCms.Intent.RELATIVE_COLORIMETRIC, ImageCms.Flags.BLACKPOINTCOMPENSATION
        transform = ImageCms.buildTransform(source, target, mode, "RGB", intent, flags)
    except (ImageCms.PyCMSError, OSError, ValueError, TypeError):
        return picture
    if mode != "CMYK":
        levels = range(0, 256, 15)
        colors = bytes(level for color in product(levels, repeat=len(mode)) for level in color)
        probe = Image.frombytes(mode, (len(colors) // len(mode), 1), colors)
        pairs = zip(transform.apply(probe).tobytes(), probe.convert("RGB").tobytes(), strict=True)
        if max(abs(new - old) for new, old in pairs) <= 3:
            return picture
    alpha = picture.convert("RGBA").getchannel("A") if picture.has_transparency_data else None
    converted: Image.Image = transform.apply(picture.convert(mode))
    if alpha is not None:
        converted.putalpha(alpha)
    return converted


def compute_pixels(picture: Image.Image, view: dict[str, Any]) -> np.ndarray:
    """A picture as the model takes it, 1 x 3 x size x size numbers in [0, 1], by "preprocess" of the file."""
    size, resample = view["size"], Image.Resampling[view["interpolation"].upper()]
    if view["resize_mode"] == "squash":
        picture = picture.resize((size, size), resample)
    elif view["resize_mode"] == "longest":
        ratio = max(picture.size) / size
        picture = picture.resize([max(1, round(side / ratio)) for side in picture.size], resample)
        left, top = [(size - side) // 2 for side in picture.size]
        border = (left, top, size - picture.width - left, size - picture.height - top)
        picture = ImageOps.expand(picture, border, (view["fill_color"],) * 3)
    else:
        short, long = sorted(picture.size)
        if long > 8 * short:  # only the middle of a strip is used
            length = 4 * short + long % 2
            left, top = [(side - length) // 2 if side == long else 0 for side in picture.size]
            picture = picture.crop((left, top, picture.width - left, picture.height - top))
        sides = [(view["short_side"] or size) * side // short for side in picture.size]
        picture = picture.resize(sides, resample)
        left, top = [(int if view["rounds_crop_down"] else round)((side - size) / 2) for side in sides]
        picture = picture.crop((left, top, left + size, top + size))
    return np.asarray(picture, dtype=np.float32).transpose(2, 0, 1)[None] / 255


def main(model: str, *paths: str) -> None:
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    import onnxruntime  # after that

    session = onnxruntime.InferenceSession(model)
    outputs = [output.name for output in session.get_outputs()]
    facts = session.get_modelmeta().custom_metadata_map
    view, classes = json.loads(facts["preprocess"]), json.loads(facts["classes"])
    for path in paths:
        try:
            picture = read_picture(path)
        except OSError as error:  # a format that Pillow alone does not read, such as HEIC, or a damaged file
            print(f"{path}: not read: {error}")
            continue
        answers = session.run(outputs, {"pixels": compute_pixels(picture, view)})
        found = dict(zip(outputs, answers, strict=True))
        ranked = sorted(zip(found["probabilities"][0], classes, strict=True), reverse=True)
        best = [f"{name} {share:.1%}" for share, name in ranked[:3]]
        is_none = bool(found.get("none_of_these", [0])[0])
        decision = decide(found["probabilities"][0], classes, json.loads(facts.get("operating", "null")))
        said = ["to a person:" if is_none and decision else decision, "none of these?" if is_none else ""]
        print(f"{path}:", *filter(None, said), ", ".join(best))


def decide(probabilities: np.ndarray, classes: list[str], operating: dict[str, Any] | None) -> str:
    """What the operating point of the file says of an image; "" for a file without one."""
    if operating is None:
        return ""
    if "costs" in operating:
        expected = probabilities @ np.array(operating["costs"])
        best, asked = int(expected.argmin()), operating["person"]
        goes = None not in asked and float(probabilities @ np.array(asked)) < expected[best]
    else:
        best = int(probabilities.argmax())
        threshold = operating["thresholds"][best]
        goes = threshold is None or probabilities[best] < threshold
    return "to a person:" if goes else f"decided {classes[best]}:"


if __name__ == "__main__":
    print(__doc__) if len(sys.argv) < 3 else main(*sys.argv[1:])
