"""The test view of an image: what an image tower sees of it. Light to import: it needs no torch."""

from PIL import Image, ImageOps

from dear.backbone.preprocess import Preprocess

THIN = 8
"""Aspect ratio above which the ends of a picture are cut off before it is resized for its center."""
FILTERS = {"bicubic": Image.Resampling.BICUBIC, "bilinear": Image.Resampling.BILINEAR}


def make_view(image: Image.Image, preprocess: Preprocess) -> Image.Image:
    """The test view of an upright RGB image, a square of the tower's size: the same levels as open_clip's
    transform with the same settings.

    Differs from it for pictures over ``THIN`` times as long as wide, whose ends are cut off first.
    """
    size, mode = preprocess.size, preprocess.resize_mode
    if image.size == (size, size) and preprocess.short_side is None:
        return image
    resample = FILTERS[preprocess.interpolation]
    if mode == "squash":
        return image.resize((size, size), resample)
    if mode == "longest":
        ratio = max(image.size) / size
        image = image.resize([max(1, round(side / ratio)) for side in image.size], resample)
        left, top = ((size - side) // 2 for side in image.size)
        border = (left, top, size - image.width - left, size - image.height - top)
        return ImageOps.expand(image, border, (preprocess.fill_color,) * 3)
    image = _without_ends(image)
    short, short_side = min(image.size), preprocess.short_side or size
    image = image.resize([short_side * side // short for side in image.size], resample)
    nearest = int if preprocess.rounds_crop_down else round
    left, top = (nearest((side - size) / 2) for side in image.size)
    return image.crop((left, top, left + size, top + size))


def _without_ends(image: Image.Image) -> Image.Image:
    """The middle of a thin picture, half of ``THIN`` short sides long: a strip of 1 x 1,000,000 pixels would
    take gigabytes after its short side is resized.
    """
    short, long = sorted(image.size)
    if long <= THIN * short:
        return image
    length = THIN // 2 * short + long % 2  # of the same parity, so that the center does not move
    left, top = ((side - length) // 2 if side == long else 0 for side in image.size)
    return image.crop((left, top, image.width - left, image.height - top))
