"""Load a frozen CLIP: the embedded one, an open_clip tag, a local file, or random weights."""

import copy
import warnings
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from dear.backbone import from_transformers, hub, tiny
from dear.backbone import openclip as open_clip
from dear.backbone.choice import architecture, unknown_model
from dear.backbone.clip import Clip
from dear.backbone.convert import require_fit
from dear.backbone.device import find_device
from dear.backbone.find_tokenizer import find_tokenizer, tokenizer_beside
from dear.backbone.model_config import require_small
from dear.backbone.repository import Repository, repository
from dear.backbone.threads import settle
from dear.backbone.tokenizer import WordTokenizer
from dear.backbone.weights import choices, download, local_file, require_published, tag_of_file
from dear.errors import DearError, WeightsError, first_line
from dear.limits import at_most
from dear.reading.tensors import require_finite

RANDOM = "random:"
OPENAI_NOTES = ("input_resolution", "context_length", "vocab_size")  # beside the weights in OpenAI's files

Triple = tuple[float, float, float]
Rename = Callable[[dict[str, Tensor]], dict[str, Tensor]]


def load_clip(
    model: str, pretrained: str | None = None, *, device: str | torch.device = "cpu", named_by: str = ""
) -> Clip:
    """Load a frozen CLIP in float32.

    Args:
        model: "tiny" (the CLIP in the package), an open_clip architecture name, or ``hf-hub:OWNER/NAME``, a
            repository in open_clip's or transformers' format, or a folder with the files of one.
        pretrained: An open_clip tag, a local file (an open_clip or OpenAI state dict: .pt, .pth, .bin,
            .safetensors) or ``random:SEED``. For "tiny": a folder written by ``tools/pretrain.py``,
            ``random:SEED``, or None for the weights in the package. For a repository: None for its own
            weights, a local file or ``random:SEED``.
        device: "auto" selects the GPU if there is one.
        named_by: What names the model if the user does not: "the bundle NAME". If its repository has to be
            fetched, a line on stderr says so first, and no weights but safetensors are fetched.

    A local file that is named after a tag (``laion2b_s34b_b88k.safetensors``), or lies in a folder named
    after its repository, is taken for that tag's weights. No code in a file is run, no path in one is opened,
    and what is downloaded is compared with the hash that the hub states. A tag determines the activation: for
    a tag trained with QuickGELU on an architecture without it, open_clip only warns; here the tag's
    activation is used. Raises UnknownNameError for an unknown architecture, WeightsError for
    unavailable or unsuitable weights, SettingsError for a GPU if there is none. On a CPU torch's number
    of threads is set where the environment asks for it (`dear.backbone.threads`).
    """
    place = find_device(device)
    clip = _load(model, pretrained, named_by).to(place)
    if place.type == "cpu":
        settle(clip)
    return clip


def _load(model: str, pretrained: str | None, named_by: str) -> Clip:
    if model == tiny.NAME:
        return _load_tiny(pretrained)
    if (found := repository(model, named_by)) is not None:
        return _load_repository(found, pretrained)
    name = architecture(model)
    if name not in open_clip.list_models():  # those that the calling program has added, too
        raise unknown_model(model, open_clip.list_models())
    tag = open_clip.get_pretrained_cfg(name, pretrained) if pretrained else {}
    if (file_of := None if tag else tag_of_file(name, pretrained)) is not None:
        tag = open_clip.get_pretrained_cfg(name, file_of)
    with torch.device("meta"):  # refuses what does not fit before anything is downloaded or allocated
        network = build(name, tag)
    require_fit(network, name)
    if pretrained is None:
        raise WeightsError(f"{name} needs weights: {choices(name)}.")
    text = open_clip.get_model_config(name)["text_cfg"]
    if pretrained.startswith(RANDOM):
        tokenizer = find_tokenizer(name, text, None)
        network, label = random_network(name, _seed(pretrained)), pretrained
    elif tag and file_of is None:
        tokenizer, label = find_tokenizer(name, text, None), pretrained  # first, as it is small
        _fill(network, download(name, pretrained, tag))
    else:
        path = local_file(name, pretrained)
        require_published(path, name, file_of)
        tokenizer, label = find_tokenizer(name, text, tokenizer_beside(path)), file_of or path.name
        _fill(network, path)
    mean, std = _pixel_statistics(name, tag)
    return Clip(network, tokenizer, name=name, pretrained=label, mean=mean, std=std)


def build(name: str, tag: dict[str, Any] | None = None) -> nn.Module:
    """An open_clip architecture with its initial weights, in the class that open_clip's factory gives it.

    ``tag`` is a tag's configuration, which determines the activation. Raises WeightsError for a text tower
    from transformers.
    """
    config = open_clip.get_model_config(name)
    if tag:
        config["quick_gelu"] = tag.get("quick_gelu", False)
    return build_from(name, config)


def build_from(name: str, config: dict[str, Any]) -> nn.Module:
    """The same from open_clip's configuration of a model, which is modified."""
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
    return network


def random_network(name: str, seed: int) -> nn.Module:
    """An open_clip architecture with weights drawn from ``seed``; the global generator is left unchanged."""
    return drawn_network(lambda: build(name), seed)


def drawn_network(make: Callable[[], nn.Module], seed: int) -> nn.Module:
    """A network whose initial weights are drawn from ``seed``."""
    with tiny.drawn_from(seed):
        return make()


def read_checkpoint(path: Path) -> dict[str, Tensor]:
    """The tensors of a checkpoint, in float32. Raises WeightsError if it is damaged or unsafe."""
    if path.suffix == ".safetensors":
        return tiny.read_tensors(path)
    if _is_torchscript(path):
        raise WeightsError(
            f"{path} is a TorchScript archive, the format of OpenAI's files, and cannot be read without "
            'running its code. If you trust it, convert it once: python -c "import torch; '
            f"torch.save(torch.jit.load('{path}', map_location='cpu').state_dict(), '{path.stem}-state.pt')\""
        )
    try:
        saved = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # an unsupported file may fail anywhere in the reader
        raise WeightsError(
            f"{path} cannot be read as a checkpoint of tensors only ({first_line(error)}): "
            "copy it again, or save its state dict alone."
        ) from error
    if isinstance(saved, dict) and isinstance(saved.get("state_dict"), dict):  # a training checkpoint
        saved = saved["state_dict"]
    if not isinstance(saved, dict):
        raise WeightsError(f"{path} holds a {type(saved).__name__}: save model.state_dict().")
    if strange := [str(name) for name, value in saved.items() if not isinstance(value, Tensor)]:
        raise WeightsError(
            f"{path} is not a state dict: {strange[0]!r} is not a tensor. Save model.state_dict()."
        )
    try:
        state = {str(name).removeprefix("module."): value.float() for name, value in saved.items()}
        require_finite(state.items(), path)
    except (RuntimeError, TypeError) as error:  # sparse, quantised or without storage
        raise WeightsError(f"{path} holds tensors of an unsupported kind ({first_line(error)}).") from error
    return state


def _fill(network: Any, path: Path, rename: Rename | None = None) -> None:
    """Load a file's tensors into a network on the meta device."""
    state = read_checkpoint(path)
    notes = [name for name in OPENAI_NOTES if state.pop(name, None) is not None]
    state = (rename or _in_open_clips_names(network))(state)
    for name in ("logit_scale", "logit_bias"):
        value, own = state.get(name), getattr(network, name)
        # A scalar in some files, one entry in others.
        if value is not None and own is not None and value.numel() == 1:
            state[name] = value.reshape(own.shape)
    tiny.fill_weights(network, state, path)
    _fill_buffers(network)
    blocks = getattr(getattr(network.visual, "transformer", None), "resblocks", None)
    if len(notes) == len(OPENAI_NOTES) and blocks and not isinstance(blocks[0].mlp.gelu, open_clip.QuickGELU):
        warnings.warn(
            f"{path} looks like OpenAI's weights, which were trained with QuickGELU: "
            "if so, use the architecture's -quickgelu name.",
            stacklevel=3,
        )


def _fill_buffers(network: nn.Module) -> None:
    """Compute what no file holds: tables of rotary embeddings, and biases of keys that are zero."""
    for module in network.modules():
        if not hasattr(module, "init_non_persistent_buffers"):
            continue
        for name, buffer in module.named_buffers(recurse=False):
            if buffer.is_meta:
                setattr(module, name, torch.empty_like(buffer, device="cpu"))
        module.init_non_persistent_buffers()  # type: ignore[operator]


def _in_open_clips_names(network: Any) -> Rename:
    """Files of a model whose text tower is a module of its own may hold it as CLIP does, or in the names of
    MobileCLIP's authors.
    """

    def rename(state: dict[str, Tensor]) -> dict[str, Tensor]:
        state = open_clip.convert_state_dict(network, state)
        if "positional_embedding" in state and not hasattr(network, "positional_embedding"):
            state = open_clip.convert_to_custom_text_state_dict(state)
        return state

    return rename


def _load_repository(found: Repository, pretrained: str | None) -> Clip:
    """A model from a repository or a folder, or its architecture with weights from elsewhere."""
    model = found.name
    theirs, config = found.config()
    usual: tuple[Triple, Triple] = (open_clip.OPENAI_DATASET_MEAN, open_clip.OPENAI_DATASET_STD)
    make: Callable[[], nn.Module]
    if theirs:
        known = cast(from_transformers.Config, config)
        make, files = partial(from_transformers.build, known, model), from_transformers.FILES
        text, pixels = from_transformers.text_config(known, model), found.pixels()
        _require_small(known, model)
        usual = from_transformers.HALF if known["model_type"] == "siglip" else usual
    else:
        make, files = partial(_from_config, model, config["model_cfg"]), hub.FILES
        text, pixels = config["model_cfg"]["text_cfg"], config.get("preprocess_cfg", {})
    network = _on_meta(model, make)
    require_fit(network, model)
    beside = None
    if pretrained is not None and pretrained.startswith(RANDOM):
        network, label = drawn_network(make, _seed(pretrained)), pretrained
    else:
        path = found.find(files) if pretrained is None else local_file(model, pretrained)
        beside = tokenizer_beside(path)
        rename = None
        if theirs and pretrained is None:
            rename = partial(from_transformers.converted, config=known, name=str(path))
        _fill(network, path, rename)
        label = ("hub" if found.folder is None else "folder") if pretrained is None else path.name
    mean = tuple(pixels.get("image_mean" if theirs else "mean", usual[0]))
    std = tuple(pixels.get("image_std" if theirs else "std", usual[1]))
    folder = (
        None if found.folder is None else found.folder if theirs else tokenizer_beside(found.folder / "x")
    )
    tokenizer = find_tokenizer(model, text, folder or beside)
    return Clip(network, tokenizer, name=model, pretrained=label, mean=mean, std=std)


def _from_config(model: str, config: dict[str, Any]) -> nn.Module:
    return build_from(model, copy.deepcopy(config))


def _require_small(config: from_transformers.Config, model: str) -> None:
    _, text, vision = from_transformers.settled(config, model)
    sizes = {
        "layers": text["num_hidden_layers"],
        "vocab_size": text["vocab_size"],
        "context_length": text["max_position_embeddings"],
    }
    require_small({"layers": vision["num_hidden_layers"]}, sizes, model)


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
    at_most("parameters", sum(one.numel() for one in network.parameters()), model)
    return network


def _load_tiny(pretrained: str | None) -> Clip:
    if pretrained is None:
        return tiny.load()
    if pretrained.startswith(RANDOM):
        tokenizer = WordTokenizer.load(tiny.FOLDER / tiny.VOCABULARY)
        network = tiny.build(tokenizer, _seed(pretrained))
        return Clip(network, tokenizer, name=tiny.NAME, pretrained=pretrained, mean=tiny.MEAN, std=tiny.STD)
    folder = Path(pretrained).expanduser()
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


def _pixel_statistics(name: str, tag: dict[str, Any]) -> tuple[Triple, Triple]:
    """Mean and standard deviation of the pixels that the weights were trained on.

    Without a tag (a local file, random weights): those of the architecture's tags if all agree, else
    OpenAI's.
    """
    tags = open_clip.list_pretrained_tags_by_model(name)
    known = [tag] if tag else [open_clip.get_pretrained_cfg(name, t) for t in tags]
    pairs = {(tuple(one["mean"]), tuple(one["std"])) for one in known}
    usual = open_clip.OPENAI_DATASET_MEAN, open_clip.OPENAI_DATASET_STD
    mean, std = pairs.pop() if len(pairs) == 1 else usual
    return mean, std


def _is_torchscript(path: Path) -> bool:
    try:
        with zipfile.ZipFile(path) as archive:
            return any(entry.endswith("/constants.pkl") for entry in archive.namelist())
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError):
        return False  # not an archive, or a damaged one: torch's reader reports the error
