"""Load a frozen CLIP: the embedded one, an open_clip tag, a local file, or random weights."""

import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from dear.backbone import openclip as open_clip
from dear.backbone.clip import Clip
from dear.backbone.device import find_device, set_threads
from dear.backbone.features_only import image_side
from dear.backbone.loading import lite, tiny
from dear.backbone.loading.convert import count_patches, require_fit, to_clip
from dear.backbone.loading.format import Format
from dear.backbone.loading.hub import Repository, find_repository
from dear.backbone.loading.open_clip_format import OpenClipFormat, initial_weights_from
from dear.backbone.loading.tokenizer_file import FileTokenizer, find_tokenizer, tokenizer_beside
from dear.backbone.loading.transformers_format import TransformersFormat
from dear.backbone.loading.weights import (
    describe_choices,
    download,
    find_local_file,
    find_tag_of_file,
    load_weights,
)
from dear.backbone.names import (
    LITE,
    RANDOM,
    REPOSITORY,
    architecture,
    is_architecture,
    unknown_model,
    weights_name,
)
from dear.errors import DearError, WeightsError, first_line
from dear.limits import require_at_most
from dear.reading.files import ReadingError, expanded
from dear.reading.typed import shown
from dear.text import printable


def load_clip(
    model: str, pretrained: str | None = None, *, device: str | torch.device = "cpu", named_by: str = ""
) -> Clip:
    """Load a frozen CLIP in float32. No code of a file is run.

    Args:
        model: "tiny" (the CLIP in the package), "lite" (a stand-in for photographs), the name of an
            architecture of open_clip, ``OWNER/NAME`` or ``hf-hub:OWNER/NAME``, a repository of the hub in
            open_clip's or transformers' format, or a folder with the files of one.
        pretrained: An open_clip tag, a local file (.pt, .pth, .bin, .safetensors) or ``random:SEED``; for
            "ViT-B-16" by default laion2b_s34b_b88k. For "tiny": a folder written by ``tools/pretrain.py``,
            ``random:SEED``, or None for the weights in the package. For a repository: None for its own
            weights, a local file or ``random:SEED``.
        device: "auto" selects the GPU if there is one.
        named_by: The file that names the model, if the user does not: "the bundle NAME". If the repository
            has to be fetched, a line on stderr says so first, and only safetensors are fetched.

    A local file that is named after a tag (``laion2b_s34b_b88k.safetensors``), or lies in a folder named
    after its repository, is taken for that tag's weights. A tag determines the activation: QuickGELU even for
    an architecture without it, where open_clip only warns. On a CPU torch's number of threads is set if
    DEAR_THREADS asks for it (:mod:`dear.backbone.device`).

    Raises UnknownNameError for an unknown architecture, WeightsError for unavailable or unsuitable weights,
    SettingsError for a GPU if there is none, LimitError for a name that is too long.
    """
    device = find_device(device)
    clip = _load(model, weights_name(model, pretrained), named_by).to(device)
    if device.type == "cpu":
        set_threads(clip)
    return clip


def find_weights(model: str, pretrained: str | None) -> None:
    """Fetch the weights of an open_clip tag unless they are in the cache, without loading them. Raises the
    WeightsError of `load_clip` if they are unavailable.
    """
    name, pretrained = architecture(model), weights_name(model, pretrained)
    if pretrained and model != tiny.NAME and (tag := open_clip.get_pretrained_cfg(name, pretrained)):
        download(name, pretrained, tag)


def named_weights(model: str, pretrained: str | None, named_by: str) -> str | None:
    """The weights named for a model, by a file if ``named_by`` is not empty. A file may not name random ones,
    for which WeightsError is raised: a few bytes could ask for gigabytes. Those of the tiny CLIP are small.
    """
    if named_by and model != tiny.NAME and pretrained is not None and pretrained.startswith(RANDOM):
        raise WeightsError(
            f"{named_by} asks for random weights of {shown(model)}, which only you may do: with --pretrained "
            f"{shown(pretrained)}, for a recipe with --model too."
        )
    return pretrained


def folder_for(model: str, pretrained: str | None, named_by: str) -> str:
    """The folder of a model that a file names, or ``pretrained``, if the user gives a folder there because it
    has moved. Raises WeightsError if there is no such folder.
    """
    if pretrained is not None and os.path.isdir(expanded(pretrained)):
        return os.path.abspath(expanded(pretrained))  # absolute: not taken for an architecture
    if not os.path.isdir(expanded(model)):
        wrong = "" if pretrained is None else f"; {shown(pretrained)} is no folder"
        raise WeightsError(
            f"the backbone of {named_by} is {shown(model)}, which is neither a folder here nor an "
            f"architecture{wrong}: say with --pretrained FOLDER where the folder is now."
        )
    return model


def _load(model: str, pretrained: str | None, named_by: str) -> Clip:
    if model == tiny.NAME:
        return _load_tiny(pretrained)
    if model == LITE:
        if pretrained is not None:
            raise WeightsError(f"lite brings its weights: leave {shown(pretrained)} out.")
        return lite.load()
    if (source := find_repository(model, named_by)) is not None:
        form = read_format(source)
        own = Weights("hub" if source.folder is None else "folder", partial(source.weights, form.FILES))
        return load_from(form, own if pretrained is None else _named_weights(model, pretrained))
    if not is_architecture(model):
        raise unknown_model(model)
    name = architecture(model)
    if pretrained is None:
        return load_from(OpenClipFormat.named(name), Weights("", partial(_refuse_without_weights, name)))
    if tag := open_clip.get_pretrained_cfg(name, pretrained):
        weights = Weights(pretrained, partial(download, name, pretrained, tag))
    else:
        weights = _named_weights(name, pretrained)
        if file_tag := find_tag_of_file(name, pretrained):
            weights = replace(weights, label=file_tag)
            tag = open_clip.get_pretrained_cfg(name, file_tag)
    return load_from(OpenClipFormat.named(name, tag), weights)


@dataclass(frozen=True)
class Weights:
    """The weights of a model: a file that is found or fetched when it is known to fit, or a seed.

    Attributes:
        label: What the identity shows.
        is_here: True for a file named by the user; that of its tokenizer may lie beside it.
    """

    label: str
    source: Callable[[], Path] | int
    is_here: bool = False


def _named_weights(name: str, pretrained: str) -> Weights:
    """Weights of a seed, or of a file here."""
    if pretrained.startswith(RANDOM):
        return Weights(pretrained, _seed(pretrained))
    return Weights(expanded(pretrained).name, partial(find_local_file, name, pretrained), is_here=True)


def _refuse_without_weights(name: str) -> Path:
    raise WeightsError(f"{name} needs weights: {describe_choices(name)}.")


FORMATS: tuple[type[Format], ...] = (OpenClipFormat, TransformersFormat)
"""The formats of files, in the order of preference."""


def read_format(source: Repository) -> Format:
    """The format of a repository or folder, by its configuration. Raises WeightsError if it has none that is
    known.
    """
    try:
        path = source.find([kind.CONFIG for kind in FORMATS])
    except WeightsError as error:
        if source.folder is not None or source.named_by or not REPOSITORY.fullmatch(source.id):
            raise
        message = f"there is no folder {printable(source.id)} here, and {error}"
        raise WeightsError(message) from error.__cause__
    kind = next(kind for kind in FORMATS if path.name == kind.CONFIG)
    try:
        return kind.read(source, path)
    except ReadingError as error:
        raise WeightsError(
            f"{source.name} does not fit: its {path.name} is not {kind.LIBRARY} ({error.reason})."
        ) from error


def load_from(form: Format, weights: Weights) -> Clip:
    """The CLIP of a format with its weights. What does not fit is refused before anything is downloaded or
    allocated. Raises DearError.
    """
    network = _outline(form)
    preprocess = form.preprocess(image_side(network.visual))
    folder, path = form.folder, weights.source() if callable(weights.source) else None
    if folder is None and path is not None and weights.is_here:
        folder = tokenizer_beside(path)
    tokenizer = find_tokenizer(form.name, form.text, folder, form.commit)
    if path is not None:
        load_weights(network, path, form.rename)
    elif isinstance(weights.source, int):
        with initial_weights_from(weights.source):
            network = form.build()
    facts = {**form.facts, **preprocess.identity()}
    if isinstance(tokenizer, FileTokenizer):
        facts["tokenizer"] = tokenizer.sha256
    return to_clip(
        network, tokenizer, preprocess, name=form.name, pretrained=weights.label, configuration=facts
    )


def _outline(form: Format) -> Any:
    """The model on the meta device. Raises WeightsError if open_clip cannot build it or no towers reproduce
    it, LimitError if it is too large.
    """
    try:
        with torch.device("meta"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            network = form.outline()
    except DearError:
        raise
    except Exception as error:  # a bad configuration may fail anywhere in open_clip's classes
        raise WeightsError(
            f"{form.name} does not fit: open_clip cannot build it ({first_line(error)})."
        ) from error
    if form.is_bounded:
        require_at_most("parameters", sum(parameter.numel() for parameter in network.parameters()), form.name)
    require_fit(network, form.name)
    if form.is_bounded:
        require_at_most("patches", patches := count_patches(network), form.name)
        if not patches:
            raise WeightsError(
                f"{form.name} does not fit: the patches of its image tower are larger than its pictures."
            )
    return network


def _load_tiny(pretrained: str | None) -> Clip:
    if pretrained is None:
        return tiny.load()
    if pretrained.startswith(RANDOM):
        tokenizer = tiny.WordTokenizer.load(tiny.FOLDER / tiny.VOCABULARY)
        network = tiny.build(tokenizer, _seed(pretrained))
        preprocess = tiny.preprocess(network)
        return to_clip(network, tokenizer, preprocess, name=tiny.NAME, pretrained=pretrained)
    folder = expanded(pretrained)
    for file in (tiny.VOCABULARY, tiny.WEIGHTS):
        if not (folder / file).is_file():
            raise WeightsError(
                f"no {file} in {folder}: weights for the tiny CLIP are a folder written by tools/pretrain.py."
            )
    return tiny.load(folder)


def _seed(pretrained: str) -> int:
    digits = pretrained.removeprefix(RANDOM)
    if not (digits.isascii() and digits.isdigit() and int(digits) < 2**63):
        raise WeightsError(f"{pretrained!r} has no valid seed: write random:0, or any number below 2^63.")
    return int(digits)
