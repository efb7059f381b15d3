"""What can be known about backbones without loading torch: names, the default, number formats."""

import os
import re
from dataclasses import dataclass
from typing import Literal, NamedTuple

from dear.backbone import openclip
from dear.errors import DearError, UnknownNameError, WeightsError, warn
from dear.reading.files import expanded

TINY, LITE = "tiny", "lite"
"""The CLIP in the package, and the stand-in for photographs that is made of pip packages."""
HUB = "hf-hub:"
RANDOM = "random:"
"""The beginning of a name of weights that are drawn from a seed."""
REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
"""OWNER/NAME on the hub."""
WEIGHTS = (".pt", ".pth", ".bin", ".safetensors")
"""Suffixes of files of weights."""
MAX_LISTED = 12  # names that a message lists


class BackboneName(NamedTuple):
    """A backbone as arguments of `load_clip`."""

    model: str
    pretrained: str | None


REAL = BackboneName("ViT-B-16", "laion2b_s34b_b88k")
"""The CLIP for photographs: by our inference the published role table belongs to it, so DeAR works with it at
once, and the methods compared were published with its architecture.
"""
SIZE, LICENSE = "about 600 MB", "MIT"
"""Of the weights of `REAL`: 149.6 million parameters of 4 bytes, and the license on its page on the hub."""
_TOY = (
    "the tiny CLIP is only for trying things out: it has seen nothing but drawings of the Attribute World, "
    "so its results on photographs mean nothing."
)
CARD = f"**Not for photographs.** The backbone is {_TOY}"


@dataclass(frozen=True, kw_only=True)
class BackboneOptions:
    """A backbone as options and recipes name it.

    Attributes:
        model: The backbone: an open_clip architecture, a repository OWNER/NAME of the hub, a folder with its
            files, lite or tiny. By default ViT-B-16 with laion2b_s34b_b88k, which is downloaded from the hub
            once (about 600 MB), or tiny if all data is of the Attribute World.
        pretrained: Weights of the backbone: an open_clip tag, a local file, or random:SEED.
    """

    model: str | None = None
    pretrained: str | None = None


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
    """A tag of an architecture as open_clip writes it (it also accepts capitals and hyphens); any other name
    of weights unchanged. The architecture of `REAL` has its weights if none are named.
    """
    if pretrained is None and architecture(model) == REAL.model:
        return REAL.pretrained
    tag = (pretrained or "").lower().replace("-", "_")
    return tag if tag in openclip.list_pretrained_tags_by_model(architecture(model)) else pretrained


def is_architecture(model: str) -> bool:
    """True for the name of an architecture, in open_clip's or OpenAI's spelling, or of `tiny` or `lite`."""
    return model in (TINY, LITE) or architecture(model) in architectures()


def may_be_folder(model: str) -> bool:
    """True for a name that is not an architecture and does not have the hub's prefix. OWNER/NAME may be a
    folder or a repository.
    """
    return not model.startswith(HUB) and not is_architecture(model)


def is_published(model: str, pretrained: str) -> bool:
    """True for weights that anybody can get by name: a tag of an architecture, or random ones."""
    return pretrained.startswith(RANDOM) or bool(openclip.get_pretrained_cfg(architecture(model), pretrained))


def is_local(model: str, pretrained: str) -> bool:
    """True for weights that are a file or folder here: neither a tag of an architecture, nor random."""
    return not is_published(model, pretrained) and expanded(pretrained).exists()


def hub_name(model: str) -> str | None:
    """``hf-hub:OWNER/NAME`` for a repository of the hub, which may be named OWNER/NAME as on its page; None
    for any other name, such as OpenAI's ViT-B/32 in upper or lower case.
    """
    if model.startswith(HUB):
        return model
    if not REPOSITORY.fullmatch(model) or model.endswith(WEIGHTS):
        return None
    if architecture(model).lower() in map(str.lower, architectures()):
        return None
    return HUB + model


def architectures() -> list[str]:
    """The names of open_clip's architectures, without loading it."""
    return openclip.list_models()


def unknown_model(model: str) -> DearError:
    """The error for a name that is not a backbone's."""
    if model.endswith(WEIGHTS):
        return WeightsError(
            f"{model} is a file of weights, not a model: give it as --pretrained, with its architecture as "
            "--model, such as ViT-B-16."
        )
    if os.sep in model and architecture(model).lower() not in map(str.lower, architectures()):
        return WeightsError(f"there is no folder {model} here: check the path of the backbone.")
    error = UnknownNameError("backbone", model, [TINY, LITE, *architectures()], most=MAX_LISTED)
    error.args = (f"{error} No folder here has that name either.",)
    return error


def warn_of_toy(model: str, *, world: bool, advice: str = "omit --model") -> None:
    """Warn in one line if the tiny CLIP is used on data that is not of the Attribute World, with what to do
    for photographs.
    """
    if model == TINY and not world:
        warn(f"{_TOY} For photographs, {advice}.")


Access = Literal["features", "layers", "heads"]
"""What a tower gives access to: features only; also its layers, which a method may change; also each head."""
ACCESS: tuple[Access, ...] = ("features", "layers", "heads")
"""In order: a tower that gives one of them also gives those before it."""


def gives(access: Access, needed: Access) -> bool:
    """True if a tower with this access gives what is needed."""
    return ACCESS.index(access) >= ACCESS.index(needed)


Precision = Literal["auto", "32-true", "bf16-mixed", "16-mixed", "16-true"]
"""Formats of numbers: "-true" names the type of the weights, "-mixed" that of products by autocast."""
HALF: Precision = "16-true"
"""The precision with weights in float16: it needs the CLIP of `dear.backbone.device`."""
