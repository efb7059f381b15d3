"""Files of weights: a tag of open_clip that is fetched once, or a local file; reading them into a network."""

import math
import os
import shlex
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import constants
from torch import Tensor, nn

from dear.backbone import hub, sharded
from dear.backbone import openclip as open_clip
from dear.backbone.choice import LICENCE, MAX_LISTED, REAL, SIZE, BackboneName
from dear.backbone.sharded import map_sharded
from dear.errors import WeightsError, first_line, listing, nearest_first, of_memory, warn
from dear.limits import LimitError, at_most
from dear.reading.files import ReadingError, expanded, opened
from dear.reading.pickles import read_pickled
from dear.reading.tensors import map_tensors, require_finite
from dear.reading.typed import shown

SUFFIXES = (".pt", ".pth", ".bin", ".safetensors", sharded.SUFFIX)
OPENAI_NOTES = ("input_resolution", "context_length", "vocab_size")  # beside the weights in OpenAI's files
SHARED = 2
"""Bytes of all tensors of a file, over its size: more than 1 where some share their values."""
OLD_FORMAT = b"\x80"
"""The first byte of a file of torch.save before version 1.6, a pickle; newer ones are zips."""
IMAGE_POSITIONS = ("visual.positional_embedding", "visual.trunk.pos_embed")
POSITIONS = (*IMAGE_POSITIONS, "positional_embedding", "text.positional_embedding")
PATCHES = ("visual.conv1.weight", "visual.trunk.patch_embed.proj.weight")
SCALES = {"logit_scale": 20, "logit_bias": 1000}
"""The largest absolute values: a scale's logarithm, of which CLIP's is 4.6, and SigLIP's bias of -17."""
MISFIT = (AttributeError, LookupError, RuntimeError, TypeError, ValueError)
Rename = Callable[[dict[str, Tensor]], dict[str, Tensor]]


def local_file(name: str, pretrained: str) -> Path:
    """The path of a weights file. Raises WeightsError if there is no such file."""
    path = expanded(pretrained)
    if os.path.isfile(path):
        return path
    if os.path.isdir(path):
        raise WeightsError(f"{path} is a folder: name the weights file in it ({', '.join(SUFFIXES)}).")
    if path.suffix in SUFFIXES or len(path.parts) > 1:
        raise WeightsError(f"no weights file at {path}. {name} takes {choices(name)}.")
    raise WeightsError(f"{name} has no weights {pretrained!r}. It takes {choices(name, pretrained)}.")


COMMITS = {REAL: "7288da5a0d6f0b51c4a2b27c624837a9236d0112"}
"""Commits of the weights that a role table in the package belongs to."""


def download(name: str, pretrained: str, tag: dict[str, Any]) -> Path:
    """A tag's weights file, from the hub's cache or fetched. Raises WeightsError that says what to copy."""
    # "owner/repository/file", or without file
    repository, _, file = (tag.get("hf_hub") or "").rpartition("/")
    files = [name for name in hub.FILES if not name.endswith(sharded.SUFFIX)]
    if file:
        files = [*dict.fromkeys([str(Path(file).with_suffix(".safetensors")), file])]
    address = f"{constants.ENDPOINT}/{repository}/resolve/main/{file or files[0]}" if repository else None
    try:
        if not repository:
            return Path(open_clip.download_pretrained(tag))
        commit = COMMITS.get(BackboneName(name, pretrained))
        return hub.fetch(repository, files, title=f"{name}/{pretrained}", revision=commit)
    except (hub.ContentError, LimitError):
        raise
    except Exception as error:  # the network, the hub and the disk share no exception class
        is_default = (name, pretrained) == REAL
        local = f"{pretrained}{Path(file or files[0]).suffix}"
        raise WeightsError(
            f"cannot download {name}/{pretrained} ({first_line(error.__cause__ or error)}). On another "
            f"machine download {address or tag.get('url')}"
            f"{f' ({SIZE}, {LICENCE} licence)' if is_default else ''}, name it {local}, and give its local "
            f"path here: --model {name} --pretrained {local}"
            f"{'; --model tiny is only for trying things out' if is_default else ''}."
        ) from error


def tag_of_file(name: str, pretrained: str | None) -> str | None:
    """The tag of an architecture that a local file is named after, or whose repository a folder above it is
    named after (as the hub's cache and `hf download` name it); None for any other file.
    """
    path = expanded(pretrained or "")
    if not os.path.isfile(path):
        return None
    folders = {folder.name for folder in path.absolute().parents}
    for tag in open_clip.list_pretrained_tags_by_model(name):
        hub_path = open_clip.get_pretrained_cfg(name, tag).get("hf_hub") or ""
        owner, _, repository = hub_path.rpartition("/")[0].partition("/")
        if path.stem == tag or folders & {repository or None, f"models--{owner}--{repository}"}:
            return str(tag)
    return None


def choices(name: str, near: str = "") -> str:
    """A description of the weights that an architecture accepts."""
    tags = nearest_first(near, open_clip.list_pretrained_tags_by_model(name))
    return f"a tag ({listing(tags, MAX_LISTED)}), a local file, or random:0 for random weights"


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """Tensors of a safetensors file, or of the files that an index lists, memory-mapped, their values unread.
    Raises WeightsError for a missing or invalid file.
    """
    if not path.is_file():
        raise WeightsError(
            f"no weights at {path}: `python -m tools.pretrain --out FOLDER` writes them, in a checkout."
        )
    try:
        return map_sharded(path) if path.name.endswith(sharded.SUFFIX) else map_tensors(path, links=True)
    except ReadingError as error:
        raise WeightsError(f"{str(error).removesuffix('.')}: copy or write it again.") from error


def read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of a weights file as it has them. Raises WeightsError if it is damaged or unsafe."""
    if path.suffix == ".safetensors" or path.name.endswith(sharded.SUFFIX):
        return read_safetensors(path)
    size = path.stat().st_size
    at_most("tensor_bytes", size, path)
    try:
        with opened(path, links=True) as file:
            first = file.read(2)
        if first.startswith(OLD_FORMAT):
            raise WeightsError(
                f"{path} was saved by a version of torch before 1.6. If you trust it, save it anew: python "
                '-c "import sys, torch; torch.save(torch.load(sys.argv[1], weights_only=True), sys.argv[2])" '
                f"{shlex.quote(str(path))} {shlex.quote(f'{path.stem}-new.pt')}"
            )
        if first != b"PK":
            raise WeightsError(f"{path} is no file of torch.save: copy it again, or name the right file.")
        content = read_pickled(path, path, size, check=lambda: _require_stored_tensors(path))
    except ReadingError as error:
        raise WeightsError(f"{path}: {error.reason}: copy it again, or save its state dict alone.") from error
    if isinstance(content, dict) and isinstance(state := dict.get(content, "state_dict"), dict):
        content = state  # of a training checkpoint
    if not isinstance(content, dict):
        raise WeightsError(f"{path} holds a {type(content).__name__}: save model.state_dict().")
    content = dict(dict.items(content))  # an OrderedDict may have attributes in place of its methods
    if not all(isinstance(name, str) for name in content):
        raise WeightsError(f"{path} is not a state dict: it has keys that are no text.")
    if foreign := [name for name, value in content.items() if not isinstance(value, Tensor)]:
        raise WeightsError(
            f"{path} is not a state dict: {shown(foreign[0])} is not a tensor. Save model.state_dict()."
        )
    claimed = sum(value.numel() * value.element_size() for value in content.values())
    if claimed > SHARED * size:
        raise WeightsError(
            f"{path} has {size:,} bytes, but its tensors {claimed:,}: they repeat their values. Save "
            "contiguous copies of them."
        )
    odd = [value for value in content.values() if value.layout != torch.strided or value.is_quantized]
    if odd or any(value.is_nested for value in content.values()):
        raise WeightsError(f"{path} holds tensors of an unsupported kind: sparse, quantised or nested.")
    return {_plain_name(name): value for name, value in content.items()}


def _plain_name(name: str) -> str:
    """A tensor's name without what DataParallel and torch.compile put before it."""
    for prefix in ("module.", "_orig_mod."):
        name = name.removeprefix(prefix)
    return name


def load_weights(network: Any, path: Path, rename: Rename | None = None) -> None:
    """Load a file's tensors into a network on the meta device, by default under open_clip's names. Raises
    WeightsError; names and shapes are compared before a value is read.
    """
    state = read_weights(path)
    notes = [name for name in OPENAI_NOTES if state.pop(name, None) is not None]
    without_values = {name: torch.empty(value.shape, device="meta") for name, value in state.items()}
    _require_same(network, _renamed(network, without_values, rename, path), path)
    fill_weights(network, _renamed(network, state, rename, path), path)
    for module in network.modules():  # what no file holds: tables of rotary embeddings, zero biases of keys
        if hasattr(module, "init_non_persistent_buffers"):
            for name, buffer in module.named_buffers(recurse=False):
                if buffer.is_meta:
                    setattr(module, name, torch.empty_like(buffer, device="cpu"))
            module.init_non_persistent_buffers()
        if hasattr(module, "build_causal_mask") and (mask := module.attn_mask) is not None and mask.is_meta:
            module.attn_mask = module.build_causal_mask()
    blocks = getattr(getattr(network.visual, "transformer", None), "resblocks", None)
    if len(notes) == len(OPENAI_NOTES) and blocks and type(blocks[0].mlp.gelu).__name__ != "QuickGELU":
        warn(
            f"{path} looks like OpenAI's weights, which were trained with QuickGELU: "
            "if so, use the architecture's -quickgelu name."
        )


def _renamed(network: Any, state: dict[str, Tensor], rename: Rename | None, path: Path) -> dict[str, Tensor]:
    """A file's tensors under the network's names, a scalar where the file has a vector of one entry."""
    try:
        state = rename(state) if rename is not None else _open_clip_names(network, state)
    except MISFIT as error:  # in what open_clip expects of a file
        if of_memory(error):
            raise
        raise WeightsError(
            f"{path} holds weights of another architecture, or lacks some ({first_line(error)})."
        ) from error
    for name in ("logit_scale", "logit_bias"):
        value, parameter = state.get(name), getattr(network, name)
        if value is not None and parameter is not None and value.numel() == 1:
            state[name] = value.reshape(parameter.shape)
    return state


def fill_weights(model: nn.Module, state: dict[str, Tensor], path: Path) -> None:
    """Load a copy of ``state`` in float32 into ``model``, a tensor at a time. Raises WeightsError naming the
    tensors that do not fit or are not finite.

    A copy, because a safetensors file's tensors start where its header ends, and matrix products of unaligned
    tensors round differently (measured: 7e-7 in text features).
    """
    _require_same(model, state, path)
    model.load_state_dict({name: _float32(name, value, path) for name, value in state.items()}, assign=True)


def _float32(name: str, value: Tensor, path: Path) -> Tensor:
    try:
        require_finite([(name, value)], path)
        copy = value.to(torch.float32, copy=True)
        require_finite([(name, copy)], path)  # float64 has larger numbers
    except ReadingError as error:
        raise WeightsError(f"{str(error).removesuffix('.')}: copy or write it again.") from error
    except (RuntimeError, TypeError) as error:  # of a type without arithmetic, or without storage
        if of_memory(error):
            raise
        raise WeightsError(f"{path} holds tensors of an unsupported kind ({first_line(error)}).") from error
    if name in SCALES and copy.abs().max() > SCALES[name]:
        raise WeightsError(
            f"{path} does not fit: its {name} is {float(copy.reshape(-1)[0]):g}, with which all "
            f"classes are alike. It must be from -{SCALES[name]} to {SCALES[name]}."
        )
    return copy


def _require_same(model: nn.Module, state: dict[str, Tensor], path: Path) -> None:
    """Raise WeightsError naming the tensors of a state that are missing, unknown or of another shape."""
    expected = model.state_dict()
    missing, unknown = sorted(expected.keys() - state.keys()), sorted(state.keys() - expected.keys())
    shapes = [name for name in expected.keys() & state.keys() if expected[name].shape != state[name].shape]
    if missing or unknown or shapes:
        for name in shapes if not missing and not unknown else ():
            _require_same_positions(name, expected[name], state[name], path, patch=_patch_size(expected))
        kinds = {"missing": missing, "unknown": unknown, "of a different shape": shapes}
        counts = [f"{len(names)} {kind} (first: {min(names)})" for kind, names in kinds.items() if names]
        raise WeightsError(f"{path} holds weights of another architecture: tensors {', '.join(counts)}.")


def _require_same_positions(name: str, expected: Tensor, actual: Tensor, path: Path, *, patch: int) -> None:
    """Raise WeightsError that says so if position embeddings are of another number of patches or words."""
    count, needed = actual.shape[-2:-1].numel(), expected.shape[-2:-1].numel()
    if name not in POSITIONS or actual.ndim != expected.ndim or actual.shape[-1] != expected.shape[-1]:
        return
    if name not in IMAGE_POSITIONS:
        raise WeightsError(
            f"{path} holds weights for texts of {count} tokens, but the model takes {needed}: name a model "
            "with such texts."
        )
    class_token = needed - math.isqrt(needed) ** 2
    patches, side = count - class_token, math.isqrt(max(0, count - class_token))
    grid = (
        f"{side * patch} x {side * patch} pixels" if side**2 == patches else f"{patches} patches, no square,"
    )
    pixels = math.isqrt(needed) * patch
    raise WeightsError(
        f"{path} holds weights for pictures of {grid} but the model takes {pixels} x {pixels} pixels, and "
        "position embeddings are not interpolated: name the architecture of that resolution (as ViT-L-14-336 "
        "is of ViT-L-14; `dear models` lists all with their pixels)."
    )


def _patch_size(expected: Mapping[str, Tensor]) -> int:
    """Pixels along a side of a patch."""
    weights = (expected[name] for name in PATCHES if name in expected)
    return next((weight.shape[-1] for weight in weights), 1)


def _open_clip_names(network: Any, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """A file of a model whose text tower is a module of its own may hold it as CLIP does, or under the names
    of MobileCLIP's authors.
    """
    if state.keys() == network.state_dict().keys():
        return state
    state = open_clip.convert_state_dict(network, state)
    if "positional_embedding" in state and not hasattr(network, "positional_embedding"):
        state = open_clip.convert_to_custom_text_state_dict(state)
    return state


def _require_stored_tensors(path: Path) -> None:
    """Raise WeightsError for a TorchScript archive, ReadingError for a compressed one, whose bytes torch
    would take for the tensors'.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError):
        return  # a damaged archive: torch's reader reports the error
    if any(entry.filename.endswith("/constants.pkl") for entry in entries):
        raise WeightsError(
            f"{path} is a TorchScript archive, the format of OpenAI's files, and cannot be read without "
            'running its code. If you trust it, convert it once: python -c "import sys, torch; '
            "torch.save(torch.jit.load(sys.argv[1], map_location='cpu').state_dict(), sys.argv[2])\" "
            f"{shlex.quote(str(path))} {shlex.quote(f'{path.stem}-state.pt')}"
        )
    if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
        raise ReadingError(path, "it is compressed")
