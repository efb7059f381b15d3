"""Render scenes to pixels, and scenes as an image set."""

from dataclasses import dataclass
from functools import cache, cached_property

import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor

from dear.world.factors import FACTOR_NAMES, STYLES
from dear.world.hashing import Stream
from dear.world.names import packaged_json
from dear.world.places import background
from dear.world.plate import distance, local_frame, texture
from dear.world.scene import Scene, draw_scenes

GLYPHS = "abcdefghijklmnopqrstuvwxyz0123456789"
_CHUNK = 64
_CORNERS = ((0.13, 0.13), (0.87, 0.87), (0.87, 0.13), (0.13, 0.87))
_CELL = 1.5 / 48
_GRAINS = 1 << 16
FURTHER_SEED = 2_000_003
"""Of scenes that are in no task and not in the pretraining."""

Plane = Float[Tensor, "batch height width"]
Picture = Float[Tensor, "batch 3 height width"]


def render(
    scene: Scene, size: int = 48, device: torch.device | str | None = None
) -> UInt8[Tensor, "batch 3 size size"]:
    """Render the scenes on a device (that of the scene by default).

    Deterministic: no pixel depends on the rest of the batch or on the device.
    """
    if device is not None:
        scene = scene.to(device)
    if len(scene) == 0:
        return torch.empty(0, 3, size, size, dtype=torch.uint8, device=scene.factors.device)
    return torch.cat([_chunk(scene[start : start + _CHUNK], size) for start in range(0, len(scene), _CHUNK)])


def _chunk(scene: Scene, size: int) -> UInt8[Tensor, "batch 3 size size"]:
    device = scene.factors.device
    centers = (torch.arange(size, device=device) + 0.5) * (1 / size)
    x, y = centers[None, :].expand(size, size), centers[:, None].expand(size, size)
    picture = background(scene.value("place"), scene.backdrop, scene.layout, x, y)
    picture = _with_plate(picture, scene, x, y)
    picture = _with_copies(picture, scene, x, y)
    picture = _with_glyph(picture, scene, x, y)
    return _finished(picture, scene)


@cache
def _colors(key: str, device: torch.device) -> Float[Tensor, "value 3"]:
    return torch.tensor([row[key] for row in packaged_json("factors")["factors"]["color"]], device=device)


@cache
def _light_colors(device: torch.device) -> Bool[Tensor, "value"]:
    """Which colors are light enough for a near-black icon."""
    rows = (row["rgb"] for row in packaged_json("factors")["factors"]["color"])
    light = [0.299 * red + 0.587 * green + 0.114 * blue > 0.45 for red, green, blue in rows]
    return torch.tensor(light, device=device)


def _mix(below: Picture, above: Picture | Float[Tensor, "batch 3 1 1"], share: Plane) -> Picture:
    return (above - below) * share[:, None] + below


def _cover(signed: Plane) -> Plane:
    """The fraction of each pixel inside an outline, from the signed distance of its center."""
    return (0.5 - signed * signed.shape[-1]).clamp(0, 1)


def _plate_colors(scene: Scene) -> tuple[Float[Tensor, "batch 3 1 1"], Float[Tensor, "batch 3 1 1"]]:
    """The color and the second color of each plate, swapped if the texture is inverted."""
    color, device = scene.value("color"), scene.factors.device
    first, second = (
        (_colors(key, device)[color] + scene.tint).clamp(0, 1)[:, :, None, None] for key in ("rgb", "second")
    )
    swap = scene.inverted[:, None, None, None]
    return torch.where(swap, second, first), torch.where(swap, first, second)


def _with_plate(picture: Picture, scene: Scene, x: Tensor, y: Tensor) -> Picture:
    """Add the textured plate with a thin edge, and on it the icon with a rim."""
    across, down = local_frame(x, y, scene.plate_center, scene.plate_turn)
    first, second = _plate_colors(scene)
    outline = distance("shape", scene.value("shape"), across, down, scene.plate_size)
    period = (1 / scene.period)[:, None, None]
    phase = scene.phase[:, :, None, None]
    share = texture(
        scene.value("texture"), across * period + phase[:, 0], down * period + phase[:, 1], 6.0 / x.shape[-1]
    )
    light = _light_colors(scene.factors.device)[scene.value("color")].to(torch.float32)[:, None, None, None]
    edge = 0.12 + (1 - light) * 0.76
    picture = _mix(picture, edge.expand(-1, 3, -1, -1), _cover(outline - 0.016))
    picture = _mix(picture, _mix(first.expand_as(picture), second, share), _cover(outline))
    across, down = local_frame(x, y, scene.icon_center, scene.icon_turn)
    icon = distance("object", scene.value("object"), across, down, scene.icon_size)
    ink = 0.98 - light * 0.95
    picture = _mix(picture, (1 - ink).expand(-1, 3, -1, -1), _cover(icon - 0.024))
    return _mix(picture, ink.expand(-1, 3, -1, -1), _cover(icon))


def _corner(number: Int[Tensor, "batch"], device: torch.device) -> Float[Tensor, "batch 2"]:
    return torch.tensor(_CORNERS, device=device)[number % 4]


def _with_copies(picture: Picture, scene: Scene, x: Tensor, y: Tensor) -> Picture:
    """Add small untextured copies of the plate in the corners, for counts above one."""
    for copy in range(1, 4):
        rows = (scene.count > copy).nonzero()[:, 0]
        if not len(rows):
            break
        few = scene[rows]
        center = _corner(few.corner + copy, picture.device)
        across, down = local_frame(x, y, center, few.plate_turn)
        outline = distance("shape", few.value("shape"), across, down, few.plate_size * 0.24)
        color = (_colors("rgb", picture.device)[few.value("color")] + few.tint).clamp(0, 1)[:, :, None, None]
        light = _light_colors(picture.device)[few.value("color")].to(torch.float32)[:, None, None, None]
        edge = 0.12 + (1 - light) * 0.76
        below = _mix(picture[rows], edge.expand(-1, 3, -1, -1), _cover(outline - 0.016))
        picture[rows] = _mix(below, color, _cover(outline))
    return picture


@cache
def _font(device: torch.device) -> Float[Tensor, "texel"]:
    """The 5 x 7 letters and digits with a margin of one cell, flattened: glyph, row (9), column (7)."""
    rows = [[[int(cell) for cell in row] for row in packaged_json("font")[glyph]] for glyph in GLYPHS]
    return torch.nn.functional.pad(torch.tensor(rows, dtype=torch.float32), (1, 1, 1, 1)).flatten().to(device)


def _with_glyph(picture: Picture, scene: Scene, x: Tensor, y: Tensor) -> Picture:
    """Add a white letter or digit on a black label in a corner."""
    rows = (scene.glyph >= 0).nonzero()[:, 0]
    if not len(rows):
        return picture
    center = _corner(scene.corner[rows], picture.device)
    column = torch.floor((x - center[:, 0, None, None]) * (1 / _CELL) + 3.5)
    row = torch.floor((y - center[:, 1, None, None]) * (1 / _CELL) + 4.5)
    inside = (column >= 0) & (column < 7) & (row >= 0) & (row < 9)
    cell = row.clamp(0, 8) * 7 + column.clamp(0, 6)
    ink = _font(picture.device)[scene.glyph[rows][:, None, None] * 63 + cell.to(torch.int64)]
    picture[rows] = torch.where(inside[:, None], ink[:, None], picture[rows])
    return picture


def _finished(picture: Picture, scene: Scene) -> UInt8[Tensor, "batch 3 size size"]:
    """Apply bars, hue, light, style, noise and rounding."""
    rows = (scene.bars > 0).nonzero()[:, 0]
    if len(rows):
        picture[rows] = barred(picture[rows], scene.bars[rows], scene.phase[rows, 0])
    rows = (scene.hue != 0).nonzero()[:, 0]
    if len(rows):
        picture[rows] = hued(picture[rows], scene.hue[rows])
    picture = lit(picture, scene.gain, scene.gradient)
    rows = (scene.style == STYLES.values.index("sketch")).nonzero()[:, 0]
    if len(rows):
        picture[rows] = sketched(picture[rows])
    for levels in scene.levels.unique().tolist():
        if levels > 1:
            rows = (scene.levels == levels).nonzero()[:, 0]
            picture[rows] = levelled(picture[rows], levels)
    for passes in range(1, int(scene.blur.max()) + 1):
        rows = (scene.blur >= passes).nonzero()[:, 0]
        picture[rows] = blurred(picture[rows])
    for block in scene.block.unique().tolist():
        if block > 1:
            rows = (scene.block == block).nonzero()[:, 0]
            picture[rows] = in_blocks(picture[rows], block)
    return rounded(picture, scene.contrast, scene.noise, scene.grain)


@cache
def _grains(device: torch.device) -> Float[Tensor, "grain"]:
    """A fixed table of nearly normal numbers (sums of four uniforms), mean 0, standard deviation 1."""
    four = Stream(71, torch.arange(_GRAINS)).uniforms("grains", 4)
    return ((four[:, 0] + four[:, 1] + four[:, 2] + four[:, 3] - 2) * 1.7320508).to(device)


def _shifted(picture: Picture, rows: int, columns: int) -> Picture:
    """The picture moved by at most one pixel, its border repeated."""
    height, width = picture.shape[-2:]
    down = torch.arange(height, device=picture.device).add(rows).clamp(0, height - 1)
    across = torch.arange(width, device=picture.device).add(columns).clamp(0, width - 1)
    return picture[:, :, down][:, :, :, across]


def blurred(picture: Picture) -> Picture:
    """One pass of the 3 x 3 binomial filter."""
    picture = picture * 0.5 + (_shifted(picture, -1, 0) + _shifted(picture, 1, 0)) * 0.25
    return picture * 0.5 + (_shifted(picture, 0, -1) + _shifted(picture, 0, 1)) * 0.25


def luminance(picture: Picture) -> Float[Tensor, "batch height width"]:
    """Gray level of a picture (Rec. 601 weights)."""
    return picture[:, 0] * 0.299 + picture[:, 1] * 0.587 + picture[:, 2] * 0.114


def sketched(picture: Picture) -> Picture:
    """Dark pencil lines on light paper where the luminance changes; no color."""
    gray = luminance(picture)[:, None]
    across = _shifted(gray, 0, 1) - _shifted(gray, 0, -1)
    down = _shifted(gray, 1, 0) - _shifted(gray, -1, 0)
    edge = torch.sqrt(across * across + down * down)
    return (0.96 - edge * 1.6).clamp(0.05, 1).expand(-1, 3, -1, -1)


def in_blocks(picture: Picture, block: int) -> Picture:
    """Blocks `block` pixels wide at a picture width of 48, each with the color of its (softened) center."""
    size = picture.shape[-1]
    side = max(1, block * size // 48)
    pixel = torch.arange(size, device=picture.device)
    center = (torch.div(pixel, side, rounding_mode="floor") * side + side // 2).clamp(max=size - 1)
    return blurred(picture)[:, :, center][:, :, :, center]


def barred(picture: Picture, cover: Float[Tensor, "batch"], phase: Float[Tensor, "batch"]) -> Picture:
    """Slanted gray bars, five across the picture, that cover the given fraction of it."""
    height, width = picture.shape[-2:]
    x = torch.arange(width, device=picture.device)[None, :] * (1 / width)
    y = torch.arange(height, device=picture.device)[:, None] * (1 / height)
    position = (x + y * 0.5) * 5 + phase[:, None, None]
    inside = position - torch.floor(position) < cover[:, None, None]
    return torch.where(inside[:, None], 0.3, picture)


def hued(picture: Picture, share: Float[Tensor, "batch"]) -> Picture:
    """Mix the given share of the next channel into each: at 1, red becomes blue, green red, blue green."""
    other = picture[:, [1, 2, 0]]
    return (other - picture) * share[:, None, None, None] + picture


def lit(picture: Picture, gain: Float[Tensor, "batch 3"], gradient: Float[Tensor, "batch 2"]) -> Picture:
    """Light: a gain for each channel, and a linear gradient across the picture."""
    height, width = picture.shape[-2:]
    x = (torch.arange(width, device=picture.device) + 0.5) * (1 / width) - 0.5
    y = (torch.arange(height, device=picture.device) + 0.5) * (1 / height) - 0.5
    light = gradient[:, 0, None, None] * x + gradient[:, 1, None, None] * y[:, None] + 1
    return picture * light[:, None] * gain[:, :, None, None]


def levelled(picture: Picture, levels: int) -> Picture:
    """A poster: each channel rounded to a few levels."""
    return torch.floor(picture.clamp(0, 1) * (levels - 1) + 0.5) * (1.0 / (levels - 1))


def rounded(
    picture: Picture,
    contrast: Float[Tensor, "batch"],
    noise: Float[Tensor, "batch"],
    grain: Int[Tensor, "batch"],
) -> UInt8[Tensor, "batch 3 height width"]:
    """Contrast about mid gray, noise (standard deviation, white is 1), then floor(255 x + 0.5)."""
    pixel = torch.arange(picture[0].numel(), device=picture.device).reshape(picture.shape[1:])
    index = (grain[:, None, None, None] + pixel) & (_GRAINS - 1)
    picture = (picture - 0.5) * contrast[:, None, None, None] + 0.5
    picture = _grains(picture.device)[index] * noise[:, None, None, None] + picture
    return torch.floor(picture.clamp(0, 1) * 255 + 0.5).to(torch.uint8)


@dataclass(frozen=True)
class WorldScenes:
    """Scenes of the combinations of pretraining, not part of any task, as an image set.

    Attributes:
        count: Number of images.
        size: Side length in pixels.
        seed: Seed of the scenes; the default is not used by any task or pretraining.
    """

    count: int
    size: int
    seed: int = FURTHER_SEED

    def __len__(self) -> int:
        return self.count

    @cached_property
    def factors(self) -> Int[Tensor, "item factor"]:
        """The value of each factor in each image."""
        return draw_scenes(self.seed, torch.arange(self.count), combinations="pretraining").factors

    @property
    def labels(self) -> Int[Tensor, "item"]:
        """The value of the object, for lack of classes."""
        return self.factors[:, FACTOR_NAMES.index("object")]

    @property
    def identity(self) -> str:
        return f"world/scenes/seed{self.seed}/{self.count}x{self.size}"

    def load(self, indices: Int[Tensor, "batch"]) -> UInt8[Tensor, "batch 3 size size"]:
        """Render the given scenes."""
        return render(draw_scenes(self.seed, indices, combinations="pretraining"), self.size)
