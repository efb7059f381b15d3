"""The pickles in files of torch.save, followed without making an object: they hold weights and nothing else.

torch's safe reader runs no code of a file, but does what takes gigabytes or minutes for some kilobytes: it
calls codecs, copies dicts, hashes nested tuples, fills dicts with numbers of one hash. Here a pickle may have
the steps and the names that tensors, state dicts and states of optimizers have, and each step takes time and
memory in proportion to its bytes: what is called gets few and new arguments, and keys are texts or numbers
of eight bytes, whose hashes do not collide.
"""

import pickletools
import re
from dataclasses import dataclass, replace
from typing import IO, cast

from dear.errors import first_line
from dear.limits import at_most, limit
from dear.reading.files import ReadingError
from dear.reading.typed import shown

LARGEST_TUPLE = 10_000
"""Parts of a tuple, those of tuples in it counted each time."""
ARGUMENTS = 100
"""Parts of the arguments of a call; those of a tensor of five dimensions are 17."""
NEWEST = 3
"""The newest protocol that `torch.load` reads without running code. torch itself writes 2."""
KEY_BYTES = 8

DICT, COUNTER = "collections OrderedDict", "collections Counter"
CALLED = frozenset({
    DICT, COUNTER, "torch Size", "torch device", "torch._utils _rebuild_tensor",
    "torch._utils _rebuild_tensor_v2", "torch._utils _rebuild_tensor_v3", "torch._utils _rebuild_parameter",
})  # fmt: skip
"""What a pickle of weights calls; a schedule of learning rates has a Counter."""
TYPES = re.compile(
    r"torch(\.cuda)? [A-Z][A-Za-z0-9]*Storage|torch\.storage (Unt|T)ypedStorage"
    r"|torch (bool|(b?float|complex|q?u?int)\d+\w*)"
)
"""What it names besides: types of storages and of values."""

TEXTS = ("BINUNICODE", "SHORT_BINSTRING")
NUMBERS = ("BININT", "BININT1", "BININT2", "LONG1")
CONSTANTS = ("NONE", "NEWFALSE", "NEWTRUE", "BINFLOAT")
PUTS, GETS = ("BINPUT", "LONG_BINPUT"), ("BINGET", "LONG_BINGET")
TUPLES = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


@dataclass(frozen=True, slots=True)
class Value:
    """What is known of a value of a pickle.

    Attributes:
        parts: those of a tuple, with itself; 1 for another value.
        name: of what may be called, or of what was called to make it; "dict" for a dict, or a tuple of one.
        key: True if it may be a key.
        grows: True for a list or a dict, and for a tuple with one.
        new: False for these if they are taken from the memo.
    """

    parts: int = 1
    name: str = ""
    key: bool = False
    grows: bool = False
    new: bool = True


def require_pickle_of_weights(file: IO[bytes], where: object) -> None:
    """Follow a pickle up to its end. Raises ReadingError for a step or a name that weights have no need of
    and for a damaged pickle, LimitError for a long one.
    """
    walk, bounded = _Walk(where), cast(IO[bytes], _Bounded(file, where))
    try:
        for number, (code, argument, _) in enumerate(pickletools.genops(bounded), start=1):
            if number % 1000 == 0:
                at_most("pickle_steps", number, where)
            walk.step(code.name, argument)
    except (ValueError, IndexError, KeyError, TypeError) as error:
        raise ReadingError(where, f"its pickle is damaged ({first_line(error)})") from error


class _Bounded:
    """A file that gives no more bytes than a pickle may have: a text states its length itself."""

    def __init__(self, file: IO[bytes], where: object) -> None:
        self.file, self.where, self.total = file, where, 0

    def read(self, size: int) -> bytes:
        at_most("pickle_bytes", self.total + size, self.where)
        return self._counted(self.file.read(size))

    def readline(self) -> bytes:
        return self._counted(self.file.readline(limit("pickle_bytes") - self.total))

    def _counted(self, content: bytes) -> bytes:
        self.total += len(content)
        return content


class _Walk:
    """The stack of torch's reader, which a mark replaces by a new one, with what is known of each value."""

    def __init__(self, where: object) -> None:
        self.where = where
        self.stack, self.below = list[Value](), list[list[Value]]()
        self.memo = dict[int, Value]()

    def step(self, code: str, argument: object) -> None:
        """Take a step. Raises ReadingError for one that weights have no need of, and IndexError, KeyError or
        ValueError for one that the stack and the memo do not allow.
        """
        if code in PUTS:
            self.memo[_number(argument)] = self.stack[-1]
        elif code in GETS:
            value = self.memo[_number(argument)]
            self.stack.append(replace(value, new=False) if value.grows else value)
        elif code in TEXTS:
            self.stack.append(Value(key=True))
        elif code in NUMBERS:
            self.stack.append(Value(key=abs(_number(argument)) < 256**KEY_BYTES))
        elif code in CONSTANTS:
            self.stack.append(Value())
        elif code == "MARK":
            self.below.append(self.stack)
            self.stack = []
        elif code in ("EMPTY_LIST", "EMPTY_DICT"):
            self.stack.append(Value(name="dict" if code == "EMPTY_DICT" else "", grows=True))
        elif code in ("TUPLE", *TUPLES):
            values = self._marked() if code == "TUPLE" else [self.stack.pop() for _ in range(TUPLES[code])]
            self.stack.append(self._tuple(values))
        elif code in ("APPEND", "APPENDS"):
            _ = self._marked() if code == "APPENDS" else self.stack.pop()
        elif code in ("SETITEM", "SETITEMS"):
            items = self._marked() if code == "SETITEMS" else [self.stack.pop(), self.stack.pop()][::-1]
            if not all(item.key for item in items[::2]):
                raise ReadingError(self.where, "its pickle has keys that are neither texts nor numbers")
        elif code == "GLOBAL":
            self.stack.append(self._global(str(argument)))
        elif code in ("REDUCE", "BUILD", "BINPERSID"):
            self.stack.append(self._called(code))
        elif code == "PROTO" and _number(argument) > NEWEST:
            raise ReadingError(self.where, f"its pickle is of protocol {argument}, which torch does not read")
        elif code not in ("PROTO", "STOP"):
            raise ReadingError(self.where, f"its pickle has the step {code}, of which weights have no need")

    def _marked(self) -> list[Value]:
        """The values above the last mark, which is removed."""
        values, self.stack = self.stack, self.below.pop()
        return values

    def _tuple(self, values: list[Value]) -> Value:
        parts = 1 + sum(value.parts for value in values)
        if parts > LARGEST_TUPLE:
            raise ReadingError(self.where, f"it has a tuple of more than {LARGEST_TUPLE:,} parts")
        grows, new = any(value.grows for value in values), all(value.new for value in values)
        return Value(parts, values[0].name if len(values) == 1 else "", grows=grows, new=new)

    def _global(self, name: str) -> Value:
        if name not in CALLED and not TYPES.fullmatch(name):
            raise ReadingError(self.where, f"its pickle names {shown(name)}, of which weights have no need")
        return Value(name=name)

    def _called(self, code: str) -> Value:
        """A storage, an OrderedDict that gets attributes, or the result of a call."""
        argument = self.stack.pop()
        small = argument.parts <= ARGUMENTS and argument.new
        if code == "BINPERSID":
            result, allowed = Value(), not argument.grows
        elif code == "BUILD":
            result = self.stack.pop()
            allowed = result.name == f"{DICT}()"
        else:
            name = self.stack.pop().name
            allowed = name in CALLED
            if name in (DICT, COUNTER):  # of another list or dict it would be a copy
                allowed = argument.parts == 1 if name == DICT else argument.name == "dict"
            parts = argument.parts if name == "torch Size" else 1
            result = Value(parts, f"{name}()", grows=name in (DICT, COUNTER))
        if not small or not allowed:
            raise ReadingError(self.where, "its pickle calls what weights have no need of")
        return result


def _number(argument: object) -> int:
    if not isinstance(argument, int):
        raise ValueError("no number where one is needed")
    return argument
