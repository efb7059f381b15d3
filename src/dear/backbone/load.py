"""Load a frozen CLIP: the embedded one, an open_clip tag, a local file, or random weights."""

import copy
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from torch import nn

from dear.backbone import from_transformers, hub, lite, tiny
from dear.backbone import openclip as open_clip
from dear.backbone.choice import (
    LITE,
    RANDOM,
    Access,
    architecture,
    is_architecture,
    unknown_model,
    weights_name,
)
from dear.backbone.clip import Clip, Tokenizer
from dear.backbone.convert import count_patches, require_fit, to_towers
from dear.backbone.device import find_device, set_threads
from dear.backbone.features_only import image_kind, image_side
from dear.backbone.plain import PlainClip, is_plain
from dear.backbone.preprocess import Preprocess
from dear.backbone.repository import Repository, find_repository
from dear.backbone.tokenizer_file import FileTokenizer, find_tokenizer, tokenizer_beside
from dear.backbone.weights import (
    describe_choices,
    download,
    find_local_file,
    find_tag_of_file,
    load_weights,
)
from dear.errors import DearError, WeightsError, first_line
from dear.limits import at_most
from dear.reading.files import expanded
from dear.reading.typed import shown


def load_clip(
    model: str, pretrained: str | None = None, *, device: str | torch.device = "cpu", named_by: str = ""
) -> Clip:
    """Load a frozen CLIP in float32. No code of a file is run.

    Args:
        model: "tiny" (the CLIP in the package), "lite" (a stand-in for photographs), the name of an
            architecture of open_clip, ``OWNER/NAME`` or ``hf-hub:OWNER/NAME``, a repository of the hub in
            open_clip's or transformers' format, or a folder with the files of one.
        pretrained: An open_clip tag, a local file (.pt, .pth, .bin, .safetensors) or ``random:SEED``. For
            "tiny": a folder written by ``tools/pretrain.py``, ``random:SEED``, or None for the weights in the
            package. For a repository: None for its own weights, a local file or ``random:SEED``.
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
        raise WeightsError(
            f"the backbone of {named_by} is {shown(model)}, which is neither a folder here nor an "
            "architecture: say with --pretrained FOLDER where the folder is now."
        )
    return model


def _load(model: str, pretrained: str | None, named_by: str) -> Clip:
    if model == tiny.NAME:
        return _load_tiny(pretrained)
    if model == LITE:
        return _load_lite(pretrained)
    if (source := find_repository(model, named_by)) is not None:
        return _load_repository(source, pretrained)
    if not is_architecture(model):
        raise unknown_model(model)
    return _load_architecture(architecture(model), pretrained)


def _load_architecture(name: str, pretrained: str | None) -> Clip:
    """An architecture of open_clip with the weights of a tag, a local file or a seed."""
    tag = open_clip.get_pretrained_cfg(name, pretrained) if pretrained else {}
    file_tag = None if tag else find_tag_of_file(name, pretrained)
    tag = open_clip.get_pretrained_cfg(name, file_tag) if file_tag else tag
    config = _config(name, tag)
    is_random = pretrained is not None and pretrained.startswith(RANDOM)
    with torch.device("meta"):  # to refuse what does not fit before anything is downloaded or allocated
        has_plain = is_plain(config) and not is_random
        network = PlainClip(**config) if has_plain else build_from(name, config)
    require_fit(network, name)
    if pretrained is None:
        raise WeightsError(f"{name} needs weights: {describe_choices(name)}.")
    is_file = not is_random and not (tag and file_tag is None)
    path = find_local_file(name, pretrained) if is_file else None
    tokenizer = find_tokenizer(name, config["text_cfg"], path and tokenizer_beside(path))
    if is_random:
        network = build_random(name, _seed(pretrained))
    else:
        load_weights(network, path or download(name, pretrained, tag))
    label = pretrained if path is None else file_tag or path.name
    # Architectures may differ only in image size or activation, such as convnext_base_w and _base_w_320.
    configuration = {
        "image_size": config["vision_cfg"].get("image_size", 224),
        "quick_gelu": bool(config.get("quick_gelu")),
    }
    preprocess = _preprocess(name, tag, image_side(network.visual))
    return _build_clip(network, tokenizer, name, label, preprocess, configuration)


def build(name: str, tag: dict[str, Any] | None = None) -> nn.Module:
    """An open_clip architecture with its initial weights, in the class that open_clip's factory gives it.

    ``tag`` is a tag's configuration, which determines the activation. Raises WeightsError for a text tower
    from transformers.
    """
    return build_from(name, _config(name, tag))


def _config(name: str, tag: dict[str, Any] | None) -> dict[str, Any]:
    config = open_clip.get_model_config(name)
    if tag:
        config["quick_gelu"] = tag.get("quick_gelu", False)
    return config


def build_from(name: str, config: dict[str, Any]) -> nn.Module:
    """The same as `build`, from open_clip's configuration of a model."""
    config = copy.deepcopy(config)
    if config["text_cfg"].get("hf_model_name"):
        raise WeightsError(
            f"{name} does not fit: its text tower is a Hugging Face model, not open_clip's own."
        )
    if config["vision_cfg"].get("timm_model_name"):
        config["vision_cfg"] |= {"timm_model_pretrained": False}  # its weights come from elsewhere
    kind: Any = open_clip.CLIP
    if config.pop("custom_text", False):
        kind = open_clip.CoCa if "multimodal_cfg" in config else open_clip.CustomTextCLIP
    network: nn.Module = kind(**config)
    decoder: Any = getattr(network, "text_decoder", None)
    if decoder is not None:  # open_clip leaves it uninitialized: no two identities would be equal
        nn.init.zeros_(decoder.text_projection)
    return network


def build_random(name: str, seed: int) -> nn.Module:
    """An open_clip architecture with weights drawn from ``seed``. The global generator is left unchanged."""
    with tiny.initial_weights_from(seed):
        return build(name)


def _load_repository(source: Repository, pretrained: str | None) -> Clip:
    """A model from a repository or a folder, or its architecture with weights from elsewhere."""
    model = source.name
    is_transformers, config = source.config()
    rename, tokenizer_folder = None, None
    if is_transformers:
        hf_config = cast(from_transformers.Config, config)
        make, files = partial(from_transformers.build, hf_config, model), from_transformers.FILES
        text = from_transformers.tokenizer_settings(hf_config, model, source.has_tokenizer)
        shape: Any = [hf_config.get("projection_dim"), *from_transformers.fill_defaults(hf_config, model)]
    else:
        make, files = partial(build_from, model, config["model_cfg"]), hub.FILES
        text, shape = config["model_cfg"]["text_cfg"], config["model_cfg"]
    network = _on_meta(model, make)
    require_fit(network, model)
    side: int = image_side(network.visual)
    if is_transformers:
        preprocess = source.preprocess(side, hf_config["model_type"])
    else:
        preprocess = Preprocess.from_open_clip(side, config.get("preprocess_cfg", {}))
    at_most("patches", patches := count_patches(network), model)
    if not patches:
        raise WeightsError(
            f"{model} does not fit: the patches of its image tower are larger than its pictures."
        )
    if pretrained is not None and pretrained.startswith(RANDOM):
        with tiny.initial_weights_from(_seed(pretrained)):
            network, label = make(), pretrained
    else:
        if pretrained is None:
            path, label = source.weights(files), "hub" if source.folder is None else "folder"
            if is_transformers:
                rename = partial(from_transformers.convert_names, kind=hf_config["model_type"])
        else:
            path = find_local_file(model, pretrained)
            # beside the weights, as the hub's cache may lack a tokenizer's files
            tokenizer_folder, label = tokenizer_beside(path), path.name
        load_weights(network, path, rename)
    folder = source.folder
    if folder is not None and not is_transformers:
        folder = tokenizer_beside(folder / files[0])
    has_tokenizer = source.folder is None and text.get("hf_tokenizer_name") == source.id
    commit = source.commit if has_tokenizer else None
    tokenizer = find_tokenizer(model, text, folder or tokenizer_folder, commit)
    return _build_clip(network, tokenizer, model, label, preprocess, {"model": shape})


def _build_clip(
    network: nn.Module, tokenizer: Tokenizer, name: str, label: str, preprocess: Preprocess,
    configuration: dict[str, Any],
) -> Clip:  # fmt: skip
    """The CLIP. Its identity covers preprocessing other than OpenAI's, and a tokenizer read from a file."""
    configuration |= preprocess.identity()
    if isinstance(tokenizer, FileTokenizer):
        configuration["tokenizer"] = tokenizer.sha256
    return Clip(
        network, tokenizer, name=name, pretrained=label, preprocess=preprocess, configuration=configuration
    )


def _on_meta(model: str, make: Callable[[], nn.Module]) -> nn.Module:
    """A repository's architecture on the meta device, so that nothing is allocated. Raises WeightsError if
    open_clip cannot build it, LimitError if it is too large.
    """
    try:
        with torch.device("meta"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            network = make()
    except DearError:
        raise
    except Exception as error:  # a bad configuration may fail anywhere in open_clip's classes
        raise WeightsError(
            f"{model} does not fit: open_clip cannot build it ({first_line(error)})."
        ) from error
    at_most("parameters", sum(parameter.numel() for parameter in network.parameters()), model)
    return network


def _load_tiny(pretrained: str | None) -> Clip:
    if pretrained is None:
        return tiny.load()
    if pretrained.startswith(RANDOM):
        tokenizer = tiny.WordTokenizer.load(tiny.FOLDER / tiny.VOCABULARY)
        network = tiny.build(tokenizer, _seed(pretrained))
        preprocess = tiny.preprocess(network)
        return Clip(network, tokenizer, name=tiny.NAME, pretrained=pretrained, preprocess=preprocess)
    folder = expanded(pretrained)
    for file in (tiny.VOCABULARY, tiny.WEIGHTS):
        if not (folder / file).is_file():
            raise WeightsError(
                f"no {file} in {folder}: weights for the tiny CLIP are a folder written by tools/pretrain.py."
            )
    return tiny.load(folder)


def _load_lite(pretrained: str | None) -> Clip:
    if pretrained is not None:
        raise WeightsError(f"lite brings its weights: leave {shown(pretrained)} out.")
    network = lite.Lite()
    return _build_clip(network, network.tokenizer, LITE, "pip", network.preprocess, {})


def _seed(pretrained: str) -> int:
    digits = pretrained.removeprefix(RANDOM)
    if not (digits.isascii() and digits.isdigit() and int(digits) < 2**63):
        raise WeightsError(f"{pretrained!r} has no valid seed: write random:0, or any number below 2^63.")
    return int(digits)


def _preprocess(name: str, tag: dict[str, Any], size: int) -> Preprocess:
    """The preprocessing that the weights were trained with.

    Without a tag (a local file, random weights): that of the architecture's tags if all agree, else OpenAI's.
    """
    names = open_clip.list_pretrained_tags_by_model(name)
    tags = [tag] if tag else [open_clip.get_pretrained_cfg(name, tag_name) for tag_name in names]
    choices = {Preprocess.from_open_clip(size, tag) for tag in tags}
    return choices.pop() if len(choices) == 1 else Preprocess(size)


@dataclass(frozen=True)
class Verdict:
    """The result of checking an open_clip architecture.

    Attributes:
        works: True if it can be used; if not, `reason` says why.
        parameters: parameters of both towers, in millions.
        image, text: what each tower gives access to.
        kind: the class of the image tower, if it gives features only.
        layers, heads: numbers of the image tower, if it gives them.
        image_size: side length in pixels.
    """

    name: str
    works: bool
    reason: str | None = None
    parameters: float | None = None
    layers: int | None = None
    heads: int | None = None
    image_size: int | None = None
    image: Access | None = None
    text: Access | None = None
    kind: str | None = None


def try_architecture(name: str) -> Verdict:
    """Build an architecture and report whether it fits."""
    try:
        with torch.device("meta"):
            network: Any = build(name)
            image, text = to_towers(network)
    except WeightsError as error:  # "NAME does not fit: REASON. What dear needs."
        return Verdict(name, False, str(error).split(" does not fit: ")[-1].split(". ")[0].rstrip("."))
    has_layers = image.access != "features"
    return Verdict(
        name,
        True,
        parameters=sum(parameter.numel() for parameter in network.parameters()) / 1e6,
        layers=image.depth if has_layers else None,
        heads=image.heads if has_layers else None,
        image_size=image.image_size,
        image=image.access,
        text=text.access,
        kind=None if has_layers else image_kind(network.visual),
    )
