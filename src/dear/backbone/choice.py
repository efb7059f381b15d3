"""What can be said of backbones without torch: names, the default, number formats."""

import os
import re
from typing import Literal, NamedTuple

from dear.backbone import openclip
from dear.errors import UnknownNameError, warn
from dear.reading.files import expanded

TINY, LITE = "tiny", "lite"
"""The CLIP in the package, and the stand-in for photographs that pip brings (`dear.backbone.lite`)."""
HUB = "hf-hub:"
RANDOM = "random:"
"""The beginning of a name of weights that are drawn from a seed."""
REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
"""OWNER/NAME on the hub."""
MAX_LISTED = 12  # names that a message lists


class BackboneName(NamedTuple):
    """A backbone as arguments of `load_clip`."""

    model: str
    pretrained: str | None


REAL = BackboneName("ViT-B-16", "laion2b_s34b_b88k")
"""The CLIP for photographs: the package has its published role table, so DeAR works with it at once, and the
methods compared were published with its architecture.
"""
SIZE, LICENCE = "about 600 MB", "MIT"
"""Of the file of `REAL`: 149.6 million parameters of 4 bytes, and what its page on the hub states."""
_TOY = (
    "the tiny CLIP is only for trying things out: it has seen nothing but drawings of the Attribute World, "
    "so its results on photographs mean nothing."
)
TOY, CARD = f"{_TOY} For photographs fit without --model.", f"**Not for photographs.** The backbone is {_TOY}"


def backbone_or_default(model: str | None, pretrained: str | None, *, world: bool) -> BackboneName:
    """The backbone to use: the named one, else the tiny CLIP for data of the Attribute World, and `REAL` for
    any other. ``pretrained`` alone selects other weights of the default.
    """
    if model is not None:
        return BackboneName(model, weights_name(model, pretrained))
    default = BackboneName(TINY, None) if world else REAL
    if pretrained is None:
        return default
    return BackboneName(default.model, weights_name(default.model, pretrained))


def check_model(model: str | None) -> None:
    """Raise the error of `load_clip` for an unknown name. A command calls it first, so that the error comes
    at once, before torch and open_clip are loaded.
    """
    if model is None or is_architecture(model) or hub_name(model) or os.path.isdir(expanded(model)):
        return
    raise unknown_model(model)


def architecture(model: str) -> str:
    """open_clip's name of an architecture, which OpenAI writes ViT-B/32."""
    return model.replace("/", "-")


def weights_name(model: str, pretrained: str | None) -> str | None:
    """open_clip's name of a tag of an architecture, of which it also takes capitals and hyphens; any other
    name of weights as it is.
    """
    tag = (pretrained or "").lower().replace("-", "_")
    return tag if tag in openclip.list_pretrained_tags_by_model(architecture(model)) else pretrained


def is_architecture(model: str) -> bool:
    """True for the name of an architecture, in open_clip's or OpenAI's spelling, or of `tiny` or `lite`."""
    return model in (TINY, LITE) or architecture(model) in architectures()


def may_be_folder(model: str) -> bool:
    """True for a name that is no architecture's, nor one of the hub with its prefix: OWNER/NAME may be both a
    folder and a repository.
    """
    return not model.startswith(HUB) and not is_architecture(model)


def is_published(model: str, pretrained: str) -> bool:
    """True for weights that anybody can name: a tag of an architecture, or random ones."""
    return pretrained.startswith(RANDOM) or bool(openclip.get_pretrained_cfg(architecture(model), pretrained))


def is_local(model: str, pretrained: str) -> bool:
    """True for weights that are a file or folder here: neither a tag of an architecture, nor random."""
    return not is_published(model, pretrained) and expanded(pretrained).exists()


def hub_name(model: str) -> str | None:
    """``hf-hub:OWNER/NAME`` for a repository of the hub, which may be named OWNER/NAME as on its page; None
    for any other name, such as OpenAI's ViT-B/32 in any case of letters.
    """
    if model.startswith(HUB):
        return model
    if not REPOSITORY.fullmatch(model) or architecture(model).lower() in map(str.lower, architectures()):
        return None
    return HUB + model


def architectures() -> list[str]:
    """The names of open_clip's architectures, without loading it."""
    return openclip.list_models()


def unknown_model(model: str) -> UnknownNameError:
    """The error for a name that no backbone has."""
    return UnknownNameError("backbone", model, [TINY, LITE, *architectures()], most=MAX_LISTED)


def warn_of_toy(model: str, *, world: bool) -> None:
    """Warn in one line if the tiny CLIP is used on data that is not of the Attribute World."""
    if model == TINY and not world:
        warn(TOY)


Access = Literal["features", "layers", "heads"]
"""What a tower gives: features alone; its layers too, which a method may change; each attention head too."""
ACCESS: tuple[Access, ...] = ("features", "layers", "heads")
"""The same in order: what gives one of them gives those before it."""


def gives(access: Access, needed: Access) -> bool:
    """True if a tower with this access gives what is needed."""
    return ACCESS.index(access) >= ACCESS.index(needed)


Precision = Literal["auto", "32-true", "bf16-mixed", "16-mixed", "16-true"]
"""As in Lightning Fabric: "-true" is the type of the weights, "-mixed" that of products by autocast."""
HALF: Precision = "16-true"
"""The precision with weights in float16: it needs the CLIP of `dear.backbone.precision`."""
