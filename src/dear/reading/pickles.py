"""Files of torch.save: what they call is checked, and their cost tried, before they are read.

torch's safe reader runs no code of a file, but it calls what a file lists: types that make tensors of memory
nobody has written, or codecs and copies that take gigabytes or minutes for some kilobytes. Here a pickle may
call what makes tensors of the file's own bytes, and nothing else; it is followed and read a first time in a
process of its own.
"""

import io
import pickletools
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from dear.errors import DearError, first_line
from dear.reading.files import ReadingError
from dear.reading.isolated import isolated
from dear.reading.typed import shown

SECONDS, BYTES_A_SECOND = 5, 10**8
"""Seconds of the processor that a file may take, and bytes for each further one: 605 MB take 0.1."""
MEMORY = 2**29
"""Bytes of memory that it may take beside its tensors."""
RECORD = "data.pkl"

ORDERED_DICT = "collections OrderedDict"
CALLED = frozenset({
    ORDERED_DICT, "collections Counter", "torch Size", "torch device", "torch._utils _rebuild_tensor",
    "torch._utils _rebuild_tensor_v2", "torch._utils _rebuild_tensor_v3", "torch._utils _rebuild_parameter",
})  # fmt: skip
"""What a pickle of weights calls; a schedule of learning rates has a Counter."""
TYPES = re.compile(
    r"torch(\.cuda)? [A-Z][A-Za-z0-9]*Storage|torch\.storage (Unt|T)ypedStorage"
    r"|torch (bool|(b?float|complex|q?u?int)\d+\w*)"
)
"""What it names besides: types of storages and of values."""

VALUES = frozenset({
    "BINUNICODE", "SHORT_BINSTRING", "BININT", "BININT1", "BININT2", "LONG1", "NONE", "NEWFALSE", "NEWTRUE",
    "BINFLOAT", "EMPTY_LIST", "EMPTY_DICT", "EMPTY_TUPLE",
})  # fmt: skip
"""Steps that add a value to the stack."""
TAKEN = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3, "BINPERSID": 1, "APPEND": 1, "SETITEM": 2}
"""Steps that take so many values from it."""
TAKEN_TO_MARK = frozenset({"TUPLE", "APPENDS", "SETITEMS"})
NO_RESULT = frozenset({"APPEND", "APPENDS", "SETITEM", "SETITEMS"})


def read_pickled(
    source: Path | io.BytesIO, where: object, size: int, check: Callable[[], None] | None = None
) -> Any:
    """What torch.save has written to a file of ``size`` bytes, or to the content of one: tensors, numbers,
    texts and containers of them, on the CPU. The tensors of a file are memory-mapped. ``check`` is called
    first, where the file is tried.

    Raises ReadingError for what is no such file, and for what torch cannot read or only by calling more than
    tensors need; LimitError for what takes far more time or memory than its size.
    """

    torch_source = source if isinstance(source, io.BytesIO) else str(source)

    def attempt() -> None:
        if check is not None:
            check()
        with _readable(where):
            # The pickle that torch reads, whatever Python's zipfile lists.
            _require_calls_of_weights(torch._C.PyTorchFileReader(torch_source).get_record(RECORD), where)
            _load(torch_source)

    isolated(attempt, where, seconds=SECONDS + size // BYTES_A_SECOND, memory=MEMORY + 2 * size)
    with _readable(where):
        return _load(torch_source)


def _load(source: str | io.BytesIO) -> Any:
    if isinstance(source, io.BytesIO):
        source.seek(0)
    return torch.load(source, map_location="cpu", weights_only=True, mmap=isinstance(source, str))


@contextmanager
def _readable(where: object) -> Iterator[None]:
    try:
        yield
    except (DearError, MemoryError):
        raise
    except Exception as error:  # an unsupported file may fail anywhere in the reader
        raise ReadingError(where, f"it is no checkpoint of tensors only ({first_line(error)})") from error


def _require_calls_of_weights(pickled: bytes, where: object) -> None:
    """Raise ReadingError for a pickle with a step or a name that weights have no need of. The stack holds the
    name of each value that is one, and of what a call made; "" for others.
    """
    stack, below, memo = list[str](), list[list[str]](), dict[int, str]()
    for code, argument, _ in pickletools.genops(pickled):
        name = code.name
        if name in ("BINPUT", "LONG_BINPUT"):
            memo[int(str(argument))] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(memo[int(str(argument))])
        elif name == "MARK":
            below.append(stack)
            stack = []
        elif name == "GLOBAL":
            if argument not in CALLED and not TYPES.fullmatch(str(argument)):
                raise ReadingError(
                    where, f"its pickle names {shown(argument)}, of which weights have no need"
                )
            stack.append(str(argument))
        elif name == "REDUCE":
            stack.pop()
            if (function := stack.pop()) not in CALLED:
                raise ReadingError(where, "its pickle calls what weights have no need of")
            stack.append(f"{function}()")
        elif name == "BUILD":
            stack.pop()
            if stack[-1] != f"{ORDERED_DICT}()":
                raise ReadingError(where, "its pickle sets attributes of what weights have no need of")
        elif name in VALUES:
            stack.append("")
        elif name in TAKEN or name in TAKEN_TO_MARK:
            if name in TAKEN_TO_MARK:
                stack = below.pop()
            else:
                del stack[-TAKEN[name] :]
            if name not in NO_RESULT:
                stack.append("")
        elif name not in ("PROTO", "STOP"):
            raise ReadingError(where, f"its pickle has the step {name}, of which weights have no need")
