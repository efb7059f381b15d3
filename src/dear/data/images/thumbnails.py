"""Thumbnails of pictures, and how much of one picture light, a shift and a zoom do not explain by another."""

import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor
from torch.nn.functional import grid_sample, interpolate, normalize

SIDE = 24
"""Pixels a side: of 16, 24 and 32 those at which a picture that was cropped by 2% a side stays nearest."""
CONTRAST, MOTION = 1e-6, 0.1
"""What is added to the normal equations for contrast, and for shift and zoom, beside a picture of length 1:
small motions are likely, large ones are not."""
STEPS, FARTHEST = 2, 0.12
"""Steps of a fit with a moved picture, and the most that it is moved or zoomed, in halves of a side."""
MOVED, LOOKS = (0.1, 0.7), 3
"""Distances by a linear fit from which and up to which a moved picture is tried, and for how many of the
nearest."""
ROWS_AT_ONCE = 256
LIGHT = 2.0
"""The most that contrasts may differ by: brighter and darker pictures have more and less."""
FLAT = 0.5
"""The contrast, in levels of 255, below which a picture has nothing to compare."""
ROUNDING = 1e-4  # a distance below which pictures are equal

Thumbnail = Float[Tensor, "3 side side"]
Thumbnails = Float[Tensor, "item 3 side side"]
Fits = tuple[Float[Tensor, "item other 5"], Float[Tensor, "item other"]]


def thumbnail(picture: UInt8[Tensor, "3 height width"]) -> Thumbnail:
    """The picture in color, reduced to `SIDE` pixels a side; levels up to 255 in half precision."""
    return interpolate(picture[None].float(), (SIDE, SIDE), mode="bilinear", antialias=True)[0].half()


def pack_thumbnail(thumbnail: Thumbnail) -> bytes:
    """A thumbnail as bytes: the inverse of `unpack_thumbnail`."""
    return thumbnail.numpy().tobytes()


def unpack_thumbnail(content: bytes) -> Thumbnail:
    """The thumbnail of `pack_thumbnail`."""
    return torch.frombuffer(bytearray(content), dtype=torch.half).view(3, SIDE, SIDE)


def are_flat(thumbnails: Thumbnails) -> Bool[Tensor, "item"]:
    """True for each picture of a single color, such as a blank page: it is no copy of another one."""
    return torch.cat([_contrasts(part.float()) for part in thumbnails.split(ROWS_AT_ONCE)]) < FLAT


def coarse_features(thumbnails: Thumbnails) -> Float[Tensor, "item feature"]:
    """Unit rows by which pictures are ranked before they are compared: gray pixels at two thirds of the
    resolution and colors at a third, without the mean level.
    """
    return torch.cat([_coarse_features(part.float()) for part in thumbnails.split(ROWS_AT_ONCE)])


def _coarse_features(colors: Float[Tensor, "item 3 side side"]) -> Float[Tensor, "item feature"]:
    gray = colors.mean(dim=1, keepdim=True)
    light, color = SIDE * 2 // 3, SIDE // 3
    hues = interpolate(colors - gray, (color, color), mode="area")
    gray = interpolate(gray, (light, light), mode="bilinear", antialias=True).flatten(1)
    gray = gray - gray.mean(dim=1, keepdim=True)
    hues = light / color * (hues - hues.mean(dim=(2, 3), keepdim=True))
    return normalize(torch.cat([gray, hues.flatten(1)], dim=1), dim=1)


def picture_distances(
    thumbnails: Thumbnails, items: Int[Tensor, "row"], others: Int[Tensor, "row other"]
) -> Float[Tensor, "row other"]:
    """How far the pictures ``others`` are from those of ``items``: the root of the share of their squares
    that an item does not explain by contrast, a shift of some pixels and a zoom of some percent. From 0 to 1,
    and not quite the same in the other direction; 1 for pictures of quite another contrast.

    The item, its gradients, and these times the position are the terms of a linear fit. Where that leaves
    neither little nor most, the nearest others are compared with the moved item.
    """
    parts = [torch.zeros(0, others.shape[1])]
    for rows in torch.arange(len(items)).split(ROWS_AT_ONCE):
        pictures, neighbors = thumbnails[items[rows]].float(), thumbnails[others[rows]].float()
        light = _contrasts(neighbors).clamp_min(ROUNDING) / _contrasts(pictures)[:, None].clamp_min(ROUNDING)
        targets = _unit(neighbors)
        squares = _fit(pictures, targets)[1]
        nearest = squares.argsort(dim=1, stable=True)[:, :LOOKS]
        near = squares.gather(1, nearest)
        row, rank = ((near > MOVED[0] ** 2) & (near < MOVED[1] ** 2)).nonzero().T
        if len(row):
            columns = nearest[row, rank]
            moved = _squares_of_moved(pictures[row], targets[row, columns])
            squares[row, columns] = torch.minimum(squares[row, columns], moved)
        squares[(light > LIGHT) | (light < 1 / LIGHT)] = 1
        parts.append(squares.clamp(ROUNDING**2, 1).sqrt())
    return torch.cat(parts)


def _center(pictures: Float[Tensor, "*item 3 side side"]) -> Float[Tensor, "*item fact"]:
    """Rows without the mean of each color: two plain red pictures have nothing in common."""
    return (pictures - pictures.mean(dim=(-2, -1), keepdim=True)).flatten(-3)


def _contrasts(pictures: Float[Tensor, "*item 3 side side"]) -> Float[Tensor, "*item"]:
    """The root mean square of the levels around the mean of each color."""
    return _center(pictures).square().mean(dim=-1).sqrt()


def _unit(pictures: Float[Tensor, "*item 3 side side"]) -> Float[Tensor, "*item fact"]:
    return normalize(_center(pictures), dim=-1)


def _fit(pictures: Float[Tensor, "item 3 side side"], targets: Float[Tensor, "item other fact"]) -> Fits:
    """Coefficients of contrast, shift and zoom along x and y, and the share of the squares of ``targets``
    that they leave.
    """
    places, half = torch.linspace(-1, 1, SIDE), (SIDE - 1) / 2
    along_x, along_y = (half * torch.gradient(pictures, dim=axis)[0] for axis in (3, 2))
    terms = [pictures, along_x, along_y, along_x * places, along_y * places[:, None]]
    rows = _center(torch.stack(terms, dim=1))
    rows = rows / rows[:, :1].norm(dim=2, keepdim=True).clamp_min(1e-6)
    products, with_targets = rows @ rows.mT, rows @ targets.mT
    damped = products + torch.diag(torch.tensor([CONTRAST, *[MOTION] * 4]))
    found = torch.linalg.solve(damped, with_targets)
    found = torch.where(found[:, :1] > 0, found, 0.0)  # a negative is another picture
    left = 1 - 2 * (found * with_targets).sum(dim=1) + (found * (products @ found)).sum(dim=1)
    return found.mT, left


def _squares_of_moved(
    pictures: Float[Tensor, "item 3 side side"], targets: Float[Tensor, "item fact"]
) -> Float[Tensor, "item"]:
    """The share of the squares of each target that its picture leaves where it was moved and zoomed."""
    motion, places, moved = torch.zeros(len(pictures), 4), torch.linspace(-1, 1, SIDE), pictures
    best = torch.ones(len(pictures))
    for _ in range(STEPS):
        contrast, *step = _fit(moved, targets[:, None])[0][:, 0].T
        motion = (motion + torch.stack(step, dim=1) / contrast.clamp_min(0.3)[:, None]).clamp(
            -FARTHEST, FARTHEST
        )
        x, y, zoom_x, zoom_y = motion.T[..., None, None]
        grid = torch.broadcast_tensors(places * (1 + zoom_x) + x, places[:, None] * (1 + zoom_y) + y)
        moved = grid_sample(pictures, torch.stack(grid, dim=-1), padding_mode="border", align_corners=True)
        best = torch.minimum(best, 1 - (_unit(moved) * targets).sum(dim=1).clamp_min(0) ** 2)
    return best
