"""The tensors of a TorchScript archive, such as OpenAI's own files of CLIP, without running its code."""

import math
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

MASK: Final = "attn_mask"
"""An attribute of OpenAI's blocks that is no weight."""
DTYPES: Final = {
    "BFloat16Storage": torch.bfloat16, "BoolStorage": torch.bool, "ByteStorage": torch.uint8,
    "CharStorage": torch.int8, "DoubleStorage": torch.float64, "FloatStorage": torch.float32,
    "HalfStorage": torch.float16, "IntStorage": torch.int32, "LongStorage": torch.int64,
    "ShortStorage": torch.int16,
}  # fmt: skip


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
