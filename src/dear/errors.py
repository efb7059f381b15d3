"""Errors that a user can fix. Every message says what is wrong and what to do about it.

The command line prints them without a traceback; any other exception is a bug and keeps its traceback.
"""

import copyreg
import errno
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from dear.text import LONGEST_NAME, likely, list_names, nearest_first, printable

NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO}
"""Errors of a disk that is full, over quota, read-only or failing."""

NO_MEMORY = ("can't allocate memory", "not enough memory", "out of memory")
"""What torch's allocators say."""

LONGEST_MESSAGE = 1500  # characters
MOST_OF_OTHERS = 200  # characters of another library's message


class DearError(Exception):
    """An error that the user can fix: the message says what is wrong and what to do, in one line."""

    def __str__(self) -> str:
        """The message, printable and not longer than a screen."""
        message = printable(super().__str__())
        return message if len(message) <= LONGEST_MESSAGE else f"{message[:LONGEST_MESSAGE]} ..."

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled as it is: the constructors of subclasses take other arguments than the message."""
        return copyreg.__newobj__, (type(self), *self.args), vars(self)  # type: ignore[attr-defined]


class UnknownNameError(DearError):
    """A name (of a task, a method, a backbone, a command, ...) that is not among the known ones.

    Attributes:
        kind: what the name should refer to, in the singular: "task", "method".
        name: the given name.
        known: the known names, closest match first. The message lists at most ``most`` of them, or names the
            command that does (``see``).
    """

    def __init__(
        self, kind: str, name: str, known: Iterable[str], most: int | None = None, see: str = ""
    ) -> None:
        self.kind = kind
        self.name = name
        self.known = nearest_first(name, known)
        nearest = likely(name, self.known)
        hint = f" Did you mean {nearest!r}?" if nearest else ""
        noun, of, owner = kind.partition(" of ")
        quoted = name if len(name) <= LONGEST_NAME else f"{name[:LONGEST_NAME]}..."
        several = f"{noun}es" if noun.endswith("ss") else f"{noun.removesuffix('s')}s"
        kinds = f"{several}{of}{owner}"
        names = f"`{see}` lists the {kinds}." if see else f"Known {kinds}: {list_names(self.known, most)}."
        super().__init__(f"unknown {kind} {quoted!r}.{hint} {names}")


class WeightsError(DearError):
    """Weights that are missing, truncated, damaged, or of another architecture than requested."""


class RoleTableError(DearError):
    """A role table that is malformed or was computed from weights other than those in use."""


class DataError(DearError):
    """A data set, split or image that is missing, malformed, or too small for the request."""


class CodeError(DearError):
    """A bug in the code of a method, or in this package: it fails the runs of the method, and no others."""


class BundleError(DearError):
    """An adapter bundle that is missing, damaged, of an unsupported schema, or fitted on other weights."""


class ExportError(DearError):
    """A model that cannot be exported, or whose export gives different results."""


class SettingsError(DearError):
    """A setting outside its allowed values."""


class TrainingDiverged(DearError):
    """A loss or gradient that is no longer finite; the last good checkpoint is kept.

    Attributes:
        step: the optimization step, counted from 1, at which it was detected.
        advice: what to try next, as one or more sentences.
        checkpoint: the last good checkpoint, if one was written.
    """

    def __init__(self, step: int, advice: str, checkpoint: Path | None = None) -> None:
        self.step = step
        self.advice = advice
        self.checkpoint = checkpoint
        resume = f" The last good checkpoint is {checkpoint}." if checkpoint else ""
        super().__init__(f"training diverged at step {step}: the loss is not finite.{resume} {advice}")


class OutputError(DearError):
    """An output path that cannot be written: no permission, not a directory, or already in use."""


_faults: ContextVar[dict[str, None] | None] = ContextVar("faults", default=None)


@contextmanager
def collected_faults() -> Iterator[dict[str, None]]:
    """Context in which each `fault` in the lists of a data set is collected, once by its text, instead of
    ending the reading.
    """
    faults = dict[str, None]()  # an ordered set of texts: an error keeps a traceback
    token = _faults.set(faults)
    try:
        yield faults
    finally:
        _faults.reset(token)


def fault(error: DataError) -> None:
    """Raise an error in the lists of a data set. Where faults are collected it returns, and reading continues
    without the faulty entry.
    """
    if (faults := _faults.get()) is None:
        raise error
    faults[str(error)] = None


def rename_in_faults(before: str, after: str) -> None:
    """Replace a text, such as the name of a folder, in the faults that were collected so far."""
    if (faults := _faults.get()) is not None:
        renamed = {text.replace(before, after): None for text in faults}
        faults.clear()
        faults.update(renamed)


@contextmanager
def as_fault() -> Iterator[None]:
    """Context in which a DataError is a `fault`."""
    try:
        yield
    except DataError as error:
        fault(error)


INNER = frozenset([__name__.partition(".")[0], "torch", "contextlib", "jaxtyping", "sklearn"])
"""Packages skipped when a warning looks for the user's line: this one, and what calls it for a user."""


class Detail(UserWarning):
    """What a user may want to know and need not act on: hidden, unless a filter of Python's `warnings` or the
    option --verbose shows it.
    """


warnings.simplefilter("ignore", Detail, append=True)


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the line of the user's program that called this package, however many calls lie between."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] in INNER:
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)


def of_the_disk(error: OSError) -> bool:
    """True if a write failed because of the disk rather than the request."""
    return error.errno in NO_ROOM


def of_memory(error: BaseException) -> bool:
    """True if memory could not be allocated, on a CPU or a GPU: torch has no exception class for all."""
    return isinstance(error, MemoryError) or any(words in str(error) for words in NO_MEMORY)


def installation(extra: str) -> str:
    """How to install an extra, for a message: from a clone, since no registry has `dear`."""
    return f"pip install '.[{extra}]' in the clone of dear"


def first_line(error: BaseException) -> str:
    """The first line of another library's error, cut after a word of its first 200 characters; its class if
    it is empty.
    """
    line = (str(error).strip() or type(error).__name__).splitlines()[0]
    if len(line) <= MOST_OF_OTHERS:
        return line
    return f"{line[: MOST_OF_OTHERS + 1].rsplit(maxsplit=1)[0][:MOST_OF_OTHERS]} ..."
