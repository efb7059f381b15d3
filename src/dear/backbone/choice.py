"""Which CLIP is used where none is named, which names there are, and what is said of the tiny one. Light to
import.
"""

import warnings
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from dear.errors import UnknownNameError

TINY = "tiny"
HUB = "hf-hub:"
MOST = 12  # names that a message lists


class Named(NamedTuple):
    """A backbone as arguments of `load_clip`."""

    model: str
    pretrained: str | None


REAL = Named("ViT-B-16", "laion2b_s34b_b88k")
"""The CLIP for photographs: the package has its published role table, so DeAR works with it at once, and the
methods compared were published with its architecture.
"""
SIZE, LICENCE = "about 600 MB", "MIT"
"""Of the file of `REAL`: 149.6 million parameters of 4 bytes, and what its page on the hub states."""
TOY = (
    "the tiny CLIP is only for trying things out: it has seen nothing but drawings of the Attribute World, "
    f"so its results on photographs mean nothing. A real CLIP is --model {REAL.model} --pretrained "
    f"{REAL.pretrained}."
)
CARD = (
    "**Not for photographs.** The backbone is the tiny CLIP, which is only for trying things out: it has "
    "seen nothing but drawings of the Attribute World, and its results on photographs mean nothing, however "
    "probable it calls them."
)


def chosen(model: str | None, pretrained: str | None, *, world: bool) -> Named:
    """The backbone to use: as named, else the tiny CLIP for data of the Attribute World, and `REAL` for any
    other. ``pretrained`` alone gives other weights of that one.
    """
    if model is not None:
        return Named(model, pretrained)
    usual = Named(TINY, None) if world else REAL
    return usual if pretrained is None else Named(usual.model, pretrained)


def check_model(model: str | None) -> None:
    """Raise the error of `load_clip` for a name that no backbone has. A command calls it first, so that this
    error is told at once, without torch and open_clip.
    """
    if model is None or model == TINY or model.startswith(HUB) or Path(model).expanduser().is_dir():
        return
    known = architectures()
    if architecture(model) not in known:
        raise unknown_model(model, known)


def architecture(model: str) -> str:
    """open_clip's name of an architecture, which OpenAI writes ViT-B/32."""
    return model.replace("/", "-")


def architectures() -> list[str]:
    """The names of open_clip's architectures: those of its files, as loading it takes seconds."""
    found = find_spec("open_clip")
    places = [] if found is None else found.submodule_search_locations or []
    return [path.stem for place in places for path in Path(place, "model_configs").glob("*.json")]


def unknown_model(model: str, known: Iterable[str]) -> UnknownNameError:
    """The error for a name that is none of the ``known`` architectures."""
    return UnknownNameError("backbone", model, [TINY, *known], most=MOST)


def warn_of_toy(model: str, *, world: bool, stacklevel: int = 2) -> None:
    """Warn in one line if the tiny CLIP is used on data that is not of the Attribute World."""
    if model == TINY and not world:
        warnings.warn(TOY, stacklevel=stacklevel + 1)
