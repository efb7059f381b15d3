"""Shifts: how a task's images differ from pretraining. Each takes a strength, 0 (none) to 1 (strong)."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch
from jaxtyping import Float
from torch import Tensor

from dear.errors import UnknownNameError
from dear.world.factors import STYLES
from dear.world.hashing import Stream
from dear.world.places import BACKDROPS
from dear.world.scene import Scene

Shift = Callable[[Scene, float, Stream], Scene]


def _centered(stream: Stream, slot: str, columns: int) -> Float[Tensor, "batch column"]:
    """Uniform in [-1, 1)."""
    return stream.uniforms(slot, columns) * 2 - 1


def _cast(scene: Scene, strength: float, _stream: Stream) -> Scene:
    """Warm light: more red, less blue."""
    return scene.with_(gain=scene.gain * (torch.tensor([0.25, -0.05, -0.65]) * strength + 1))


def _hue(scene: Scene, strength: float, _stream: Stream) -> Scene:
    """Other hues: the given share of the next channel is mixed into each."""
    return scene.with_(hue=scene.hue + strength)


def _haze(scene: Scene, strength: float, stream: Stream) -> Scene:
    """Blur (up to 4 passes), less contrast, noise."""
    passes = torch.floor(stream.uniform("shift haze", 0.5, 1.0) * (4 * strength) + 0.5).to(torch.int64)
    return scene.with_(
        blur=scene.blur + passes,
        contrast=scene.contrast * (1 - 0.4 * strength),
        noise=scene.noise + 0.12 * strength,
    )


def _abstract(scene: Scene, strength: float, stream: Stream) -> Scene:
    """An abstract backdrop instead of the place, for the given share of the images."""
    backdrop = stream.integer("shift backdrop", len(BACKDROPS))
    return scene.with_(
        backdrop=torch.where(stream.chance("shift abstract", strength), backdrop, scene.backdrop)
    )


def _far(scene: Scene, strength: float, stream: Stream) -> Scene:
    """A plate down to half as wide, anywhere in the picture, with its icon."""
    scale = 1 - stream.uniform("shift far", 0.35, 0.55) * strength
    moved = _centered(stream, "shift far centre", 2) * (0.22 * strength)
    return scene.with_(
        plate_size=scene.plate_size * scale,
        icon_size=scene.icon_size * scale,
        plate_center=scene.plate_center + moved,
        icon_center=scene.plate_center + moved + (scene.icon_center - scene.plate_center) * scale[:, None],
    )


def _turned(scene: Scene, strength: float, _stream: Stream) -> Scene:
    """Plate and icon turned alike, by the same part of half a turn in all images."""
    turn = 0.5 * strength
    return scene.with_(plate_turn=scene.plate_turn + turn, icon_turn=scene.icon_turn + turn)


def _dusk(scene: Scene, strength: float, stream: Stream) -> Scene:
    """Little light, bluish, with the noise of a dark picture."""
    light = 1 - stream.uniform("shift dusk", 0.7, 0.95)[:, None] * strength
    blue = torch.tensor([-0.15, -0.05, 0.25]) * strength + 1
    return scene.with_(gain=scene.gain * light * blue, noise=scene.noise + 0.05 * strength)


def _bars(scene: Scene, strength: float, stream: Stream) -> Scene:
    """Gray bars that hide up to 60% of the picture."""
    return scene.with_(bars=stream.uniform("shift bars", 0.6, 1.0) * (0.6 * strength))


def _inverted(scene: Scene, strength: float, stream: Stream) -> Scene:
    """The texture's two colors swapped, for the given share of the images."""
    return scene.with_(inverted=stream.chance("shift inverted", strength))


def _stretch(scene: Scene, strength: float, stream: Stream) -> Scene:
    """A coarser texture."""
    return scene.with_(period=scene.period * (1 + stream.uniform("shift stretch", 0.5, 1.0) * strength))


def _tint(scene: Scene, strength: float, stream: Stream) -> Scene:
    """Plate colors that deviate from the usual ones."""
    return scene.with_(tint=scene.tint + _centered(stream, "shift tint", 3) * (0.18 * strength))


def _glare(scene: Scene, strength: float, stream: Stream) -> Scene:
    """A strong light from one side."""
    return scene.with_(gradient=scene.gradient + _centered(stream, "shift glare", 2) * strength)


def _styled(scene: Scene, style: Tensor, block: Tensor) -> Scene:
    pixelated, blurred = (style == STYLES.values.index(name) for name in ("pixelated", "blurred"))
    return scene.with_(style=style, block=torch.where(pixelated, block, 1), blur=torch.where(blurred, 2, 0))


def _sketch(scene: Scene, strength: float, stream: Stream) -> Scene:
    """Pencil lines, for the given share of the images."""
    sketch = torch.full_like(scene.style, STYLES.values.index("sketch"))
    style = torch.where(stream.chance("shift sketch", strength), sketch, scene.style)
    return _styled(scene, style, scene.block)


def _poster(scene: Scene, strength: float, stream: Stream) -> Scene:
    """Two or three levels per channel, for the given share of the images."""
    levels = 2 + stream.integer("shift levels", 2)
    return scene.with_(levels=torch.where(stream.chance("shift poster", strength), levels, scene.levels))


SHIFTS: Mapping[str, Shift] = MappingProxyType({shift.__name__[1:]: shift for shift in (
    _cast, _hue, _haze, _abstract, _far, _turned, _dusk, _bars, _inverted, _stretch, _tint, _glare,
    _sketch, _poster
)})  # fmt: skip


def shifted(scene: Scene, kind: str, strength: float, stream: Stream) -> Scene:
    """The scene under one shift."""
    if kind not in SHIFTS:
        raise UnknownNameError("shift", kind, SHIFTS)
    return SHIFTS[kind](scene, strength, stream)
