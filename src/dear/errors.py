"""The errors that a user can mend. Every message says what is wrong and what to do about it.

The command line prints them without a traceback; anything else that is raised is a bug and keeps
its traceback.
"""

import errno
from collections.abc import Iterable, Sequence
from difflib import SequenceMatcher
from pathlib import Path

CLOSE_ENOUGH = 0.6
NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO}
"""What a disk says that is full, used up, closed or failing."""


CONTROLS = frozenset([*range(0x20), *range(0x7F, 0xA0), *range(0x2028, 0x202F), *range(0x2066, 0x206A)])
"""Signs that steer a terminal, end a line or turn the direction of writing: names of files hold them."""


class DearError(Exception):
    """Something that the user can mend: the message says what is wrong and what to do, in one line."""

    def __str__(self) -> str:
        return printable(super().__str__())


class UnknownNameError(DearError):
    """A name (of a task, a method, a backbone, a command, ...) that is not among the known ones.

    Attributes:
        kind: what the name should have named, in the singular: "task", "method".
        name: the name as it was given.
        known: the known names, nearest to the given one first. The message lists at most ``most`` of them.
    """

    def __init__(self, kind: str, name: str, known: Iterable[str], most: int | None = None) -> None:
        self.kind = kind
        self.name = name
        self.known = nearest_first(name, known)
        best = self.known[0] if self.known and _likeness(name, self.known[0]) >= CLOSE_ENOUGH else None
        hint = f" Did you mean {best!r}?" if best else ""
        listed = listing(self.known, most)
        what, of, rest = kind.partition(" of ")
        super().__init__(
            f"unknown {kind} {name!r}.{hint} Known {what.removesuffix('s')}s{of}{rest}: {listed}."
        )


class WeightsError(DearError):
    """Weights that are missing, cut short, damaged, or of another architecture than was asked for."""


class RoleTableError(DearError):
    """A role table that is malformed or that was computed from other weights than those in use."""


class DataError(DearError):
    """A data set, split or image that is missing, malformed, or too small for what was asked."""


class BundleError(DearError):
    """An adapter bundle that is missing, damaged, of another schema, or fitted on other weights."""


class ExportError(DearError):
    """A model that cannot be exported, or that does not give the same once it is."""


class SettingsError(DearError):
    """A setting outside the values that it can take."""


class TrainingDiverged(DearError):
    """A loss or gradient that is no longer finite; the last good checkpoint is kept.

    Attributes:
        step: the optimisation step, counted from 1, at which it was noticed.
        advice: what to try next, as one or more sentences.
        checkpoint: the last good checkpoint, if one had been written.
    """

    def __init__(self, step: int, advice: str, checkpoint: Path | None = None) -> None:
        self.step = step
        self.advice = advice
        self.checkpoint = checkpoint
        kept = f" The last good checkpoint is {checkpoint}." if checkpoint else ""
        super().__init__(f"training diverged at step {step}: the loss is not finite.{kept} {advice}")


class OutputError(DearError):
    """A place that cannot be written to: no permission, not a directory, or taken already."""


def printable(text: str, *, lines: bool = False) -> str:
    """A text that is only seen, wherever it is shown: control characters as escapes; line ends and tabs stay
    with ``lines``.
    """
    return text.translate(_ESCAPES_IN_LINES if lines else _ESCAPES)


_ESCAPES = {code: f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" for code in CONTROLS} | {10: "\\n"}
_ESCAPES_IN_LINES = {code: shown for code, shown in _ESCAPES.items() if code not in (9, 10)}


def of_the_disk(error: OSError) -> bool:
    """Whether the disk, and nothing in what was asked, is why a file cannot be written."""
    return error.errno in NO_ROOM


def listing(names: Sequence[str], most: int | None = None) -> str:
    """Names for a message, in their order: "a, b" and, beyond ``most``, "a, b ... and 3 more"."""
    shown = names[:most]
    rest = f" ... and {len(names) - len(shown)} more" if len(shown) < len(names) else ""
    return (", ".join(shown) or "none") + rest


def first_line(error: BaseException) -> str:
    """The first line of another library's error, at most 200 letters of it; its class if it says nothing."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]


def nearest_first(name: str, known: Iterable[str]) -> list[str]:
    """Sort the known names by likeness to the given one, regardless of case; ties in alphabetical order."""
    return sorted(known, key=lambda candidate: (-_likeness(name, candidate), candidate))


def _likeness(one: str, other: str) -> float:
    return SequenceMatcher(None, one.casefold(), other.casefold()).ratio()
