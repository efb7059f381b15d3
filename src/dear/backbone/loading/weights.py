"""Weights files: find a local one or fetch that of an open_clip tag, and read it into a network."""

import math
import os
import pickle
import re
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import constants
from torch import Tensor, nn

from dear.backbone import openclip as open_clip
from dear.backbone.loading import hub
from dear.backbone.names import LICENSE, MAX_LISTED, REAL, SIZE, WEIGHTS, BackboneName
from dear.errors import WeightsError, first_line, of_memory, warn
from dear.limits import LimitError, require_at_most
from dear.reading.files import ReadingError, expanded
from dear.reading.tensors import map_tensors
from dear.text import list_names, nearest_first

SUFFIXES = (*WEIGHTS, hub.INDEX)
COMMITS = {REAL: "7288da5a0d6f0b51c4a2b27c624837a9236d0112"}
"""Commits of the weights that a role table in the package belongs to."""
OPENAI_NOTES = ("input_resolution", "context_length", "vocab_size")  # besides the weights in OpenAI's files
PICKLED = re.compile(r"global|class|instance", re.IGNORECASE)
"""In torch's words for a file that is whole, but names what may run code."""
MASK = "attn_mask"
"""An attribute of OpenAI's blocks that is no weight."""
DTYPES = {
    "BFloat16Storage": torch.bfloat16, "BoolStorage": torch.bool, "ByteStorage": torch.uint8,
    "CharStorage": torch.int8, "DoubleStorage": torch.float64, "FloatStorage": torch.float32,
    "HalfStorage": torch.float16, "IntStorage": torch.int32, "LongStorage": torch.int64,
    "ShortStorage": torch.int16,
}  # fmt: skip
Rename = Callable[[Any, dict[str, Tensor]], dict[str, Tensor]]
"""Puts the tensors of a file under the names of a network."""


def find_local_file(name: str, pretrained: str) -> Path:
    """The path of a weights file. Raises WeightsError if there is no such file."""
    path = expanded(pretrained)
    if os.path.isfile(path):
        return path
    if os.path.isdir(path):
        raise WeightsError(f"{path} is a folder: name the weights file in it ({', '.join(SUFFIXES)}).")
    if path.suffix in SUFFIXES or len(path.parts) > 1:
        raise WeightsError(f"no weights file at {path}. {name} takes {describe_choices(name)}.")
    raise WeightsError(
        f"{name} has no weights {pretrained!r}. It takes {describe_choices(name, pretrained)}."
    )


def download(name: str, pretrained: str, tag: dict[str, Any]) -> Path:
    """A tag's weights file, from the hub's cache or fetched. Raises WeightsError that says what to copy."""
    repository, _, file = (tag.get("hf_hub") or "").rpartition("/")  # OWNER/NAME/file, or without file
    files = [name for name in hub.FILES if not name.endswith(hub.INDEX)]
    if file:
        files = [*dict.fromkeys([str(Path(file).with_suffix(".safetensors")), file])]
    try:
        if not repository:
            return Path(open_clip.download_pretrained(tag))
        commit = COMMITS.get(BackboneName(name, pretrained))
        return hub.fetch(repository, files, title=f"{name}/{pretrained}", revision=commit)
    except LimitError:
        raise
    except Exception as error:  # the network, the hub and the disk share no exception class
        wanted, local = file or files[0], f"{name}-{pretrained}{Path(file or files[0]).suffix}"
        address = f"{constants.ENDPOINT}/{repository}/resolve/main/{wanted}" if repository else tag.get("url")
        is_default = (name, pretrained) == REAL
        about = f" ({SIZE}, {LICENSE} license)" if is_default else ""
        instead = (
            "; without a hub, the methods that need features alone, as dear+ can, run on --model lite, whose "
            "weights come from pip packages"
        )
        raise WeightsError(
            f"cannot download {name}/{pretrained} ({first_line(error.__cause__ or error)}). On another "
            f"machine download {address}{about}, name it {local}, and give its local path here in place of "
            f"{pretrained}, as in --model {name} --pretrained {local}{instead if is_default else ''}."
        ) from error


def find_tag_of_file(name: str, pretrained: str | None) -> str | None:
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


def describe_choices(name: str, near: str = "") -> str:
    """A description of the weights that an architecture accepts."""
    tags = nearest_first(near, open_clip.list_pretrained_tags_by_model(name))
    return f"a tag ({list_names(tags, MAX_LISTED)}), a local file, or random:0 for random weights"


def read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of a weights file as they are stored, memory-mapped. It is a safetensors file, an index of
    several, or a state dict. Raises WeightsError if it is damaged or unsafe.
    """
    try:
        if path.suffix == ".safetensors":
            return map_tensors(path)
        require_at_most("tensor_bytes", path.stat().st_size, path)
        if not path.name.endswith(hub.INDEX):
            return _read_pickled(path)
        files = [path.parent / file for file in hub.list_shards(path)]
        require_at_most("tensor_bytes", sum(file.stat().st_size for file in files), path)
        return {name: tensor for file in files for name, tensor in read_weights(file).items()}
    except (WeightsError, LimitError):
        raise
    except Exception as error:  # a damaged file may fail anywhere in the readers
        if of_memory(error):
            raise
        reason = error.reason if isinstance(error, ReadingError) else first_line(error)
        raise WeightsError(
            f"{path} is damaged, or not a file of weights ({reason}): copy it again."
        ) from error


def _read_pickled(path: Path) -> dict[str, Tensor]:
    """The state dict in a file of torch.save or torch.jit.save. Its code is not run."""
    is_zip = zipfile.is_zipfile(path)  # as torch writes since 1.6; it can be mapped
    if is_zip:
        with zipfile.ZipFile(path) as file:
            if top := find_archive(file):
                return read_archive(file, top)
    try:
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=is_zip)
    except pickle.UnpicklingError as error:
        if not PICKLED.search(str(error)):
            raise
        raise WeightsError(
            f"{path} holds a whole model, or other Python objects beside its tensors, whose code is not run: "
            "save model.state_dict() alone."
        ) from error
    if isinstance(content, dict):
        content = content.get("state_dict", content)  # a training checkpoint
    if not isinstance(content, dict) or not all(isinstance(value, Tensor) for value in content.values()):
        raise WeightsError(f"{path} is not a state dict of tensors: save model.state_dict().")
    # DataParallel and torch.compile put these before each name.
    return {
        str(name).removeprefix("module.").removeprefix("_orig_mod."): value for name, value in content.items()
    }


class _Module:
    """What an archive has for a module: the pickle sets its attributes."""


def find_archive(file: zipfile.ZipFile) -> str | None:
    """The name of the folder that a TorchScript archive holds; None if the file is none."""
    tops = {name.partition("/")[0] for name in file.namelist() if name.endswith("/constants.pkl")}
    return tops.pop() if len(tops) == 1 else None


def read_archive(file: zipfile.ZipFile, top: str) -> dict[str, Tensor]:
    """The parameters and buffers in an archive, by the names that they have in a state dict.

    Its pickle may name modules, tensors and lists alone; anything else raises UnpicklingError. Raises other
    exceptions for a damaged archive.
    """
    with file.open(f"{top}/data.pkl") as stream:
        root = _Unpickler(stream, file, Path(top)).load()
    return dict(_tensors(root, ""))


class _Unpickler(pickle.Unpickler):
    """Reads modules as plain objects; no function of the file or of another library is called."""

    def __init__(self, stream: Any, archive: zipfile.ZipFile, top: Path) -> None:
        super().__init__(stream)
        self.archive, self.top = archive, top

    def find_class(self, module: str, name: str) -> Any:
        if module.partition(".")[0] == "__torch__":
            return _Module
        if module == "torch" and name in DTYPES:
            return DTYPES[name]
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return _rebuild
        if module == "torch.jit._pickle":  # typed lists
            return _first
        raise pickle.UnpicklingError(f"it names {module}.{name}")

    def persistent_load(self, facts: tuple[str, torch.dtype, str, str, int]) -> Tensor:
        """The values of a storage, in a row."""
        _, dtype, key, _, count = facts
        if not count:
            return torch.empty(0, dtype=dtype)
        info = self.archive.getinfo((self.top / "data" / key).as_posix())
        if info.compress_type != zipfile.ZIP_STORED:  # torch compresses none: they could become large
            raise pickle.UnpicklingError("its tensors are compressed")
        return torch.frombuffer(bytearray(self.archive.read(info)), dtype=dtype, count=count)


def _rebuild(values: Tensor, offset: int, size: Sequence[int], stride: Sequence[int], *_: Any) -> Tensor:
    if math.prod(size) > len(values):  # values that repeat could become large
        raise pickle.UnpicklingError("a tensor is larger than its values")
    return torch.as_strided(values, size, stride, offset)


def _first(value: Any, *_: Any) -> Any:
    return value


def _tensors(module: Any, prefix: str) -> Iterator[tuple[str, Tensor]]:
    for name, value in vars(module).items():
        if isinstance(value, Tensor) and name != MASK:
            yield prefix + name, value
        elif isinstance(value, _Module):
            yield from _tensors(value, f"{prefix}{name}.")


def open_clip_names(network: Any, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """A file's tensors under open_clip's names. If the text tower is a module of its own, the file may have
    CLIP's names for it, or those of MobileCLIP's authors.
    """
    if state.keys() == network.state_dict().keys():
        return state
    state = open_clip.convert_state_dict(network, state)
    if "positional_embedding" in state and not hasattr(network, "positional_embedding"):
        state = open_clip.convert_to_custom_text_state_dict(state)
    return state


def load_weights(network: Any, path: Path, rename: Rename = open_clip_names) -> None:
    """Load a file's tensors into a network on the meta device. Raises WeightsError; names and shapes are
    compared before a value is read.
    """
    state = read_weights(path)
    notes = [name for name in OPENAI_NOTES if state.pop(name, None) is not None]
    without_values = {name: torch.empty(value.shape, device="meta") for name, value in state.items()}
    _require_same(network, _rename(network, without_values, rename, path), path)
    fill_weights(network, _rename(network, state, rename, path), path)
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


def _rename(network: Any, state: dict[str, Tensor], rename: Rename, path: Path) -> dict[str, Tensor]:
    """A file's tensors under the network's names. A vector of one entry becomes a scalar where it has one."""
    try:
        state = rename(network, state)
    except Exception as error:  # of open_clip, for tensors of another architecture
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
    if value.is_complex() or value.is_quantized or value.layout != torch.strided:
        raise WeightsError(f"{path} does not fit: the values of {name} are complex, quantized or sparse.")
    copy = value.to(torch.float32, copy=True)
    if not math.isfinite(copy.sum()) and not copy.isfinite().all():
        raise WeightsError(f"{path} is damaged: values of {name} are not finite. Copy or write it again.")
    return copy


def _require_same(model: nn.Module, state: Mapping[str, Tensor], path: Path) -> None:
    """Raise WeightsError naming the tensors of a state that are missing, unknown or of another shape."""
    expected = model.state_dict()
    common = expected.keys() & state.keys()
    kinds = {
        "missing": expected.keys() - common,
        "unknown": state.keys() - common,
        "of a different shape": {name for name in common if expected[name].shape != state[name].shape},
    }
    if counts := [f"{len(names)} {kind} (first: {min(names)})" for kind, names in kinds.items() if names]:
        raise WeightsError(
            f"{path} holds weights of another architecture, or for another size of images or texts: "
            f"tensors {', '.join(counts)}. docs/models.md has all; position embeddings are not interpolated."
        )
