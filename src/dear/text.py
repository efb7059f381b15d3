"""Text for messages: numbers with their nouns, lists of names, the nearest name, characters that are safe to
print. Imports nothing of this package.
"""

import hashlib
import unicodedata
from collections.abc import Iterable
from difflib import SequenceMatcher

CLOSE_ENOUGH = 0.6
FEW = 3  # files or classes that a note names
LONGEST_NAME = 100
"""Characters of an unknown name in a message: it may come from a file or a request."""
CONTROLS = frozenset([*range(0x20), *range(0x7F, 0xA0), *range(0x2028, 0x202F), *range(0x2066, 0x206A)])
"""Characters that control a terminal, end a line or change the text direction; file names may hold them."""


def list_names(names: Iterable[str], most: int | None = None) -> str:
    """Names for a message, in the given order: "a, b" or, beyond ``most``, "a, b ... and 3 more"."""
    names = [*names]
    listed = names[:most]
    more = f" ... and {len(names) - len(listed)} more" if len(listed) < len(names) else ""
    return (", ".join(listed) or "none") + more


def plural(number: int, noun: str) -> str:
    """A number of things: "1 image", "2 images", "3 classes"."""
    if number == 1:
        return f"1 {noun}"
    return f"{number:,} {noun}{'es' if noun.endswith(('s', 'ch')) else 's'}"


def printable(text: str, *, lines: bool = False) -> str:
    """Text for display, with control characters escaped; ``lines`` keeps line ends and tabs."""
    return text.translate(_ESCAPES_IN_LINES if lines else _ESCAPES)


def compose(text: str) -> str:
    """The text in Unicode's composed form (NFC): macOS may store accents apart from their letters."""
    return text if text.isascii() else unicodedata.normalize("NFC", text)


def without_surrogates(text: str) -> str:
    """Text that UTF-8 can hold: "?" for each byte of a file's name that is none."""
    return text.encode("utf-8", "replace").decode()


_ESCAPES = {code: f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" for code in CONTROLS} | {10: "\\n"}
_ESCAPES_IN_LINES = {code: text for code, text in _ESCAPES.items() if code not in (9, 10)}


def nearest_first(name: str, candidates: Iterable[str]) -> list[str]:
    """Sort candidates by similarity to a name, ignoring case; ties alphabetically."""
    return sorted(candidates, key=lambda candidate: (-_likeness(name, candidate), candidate))


def likely(name: str, candidates: Iterable[str]) -> str | None:
    """The candidate that a mistyped name probably stands for, if any is close enough."""
    nearest = next(iter(nearest_first(name, candidates)), None)
    return nearest if nearest is not None and _likeness(name, nearest) >= CLOSE_ENOUGH else None


def _likeness(name: str, candidate: str) -> float:
    # The matcher takes time quadratic in the lengths, and a name may come from a request.
    pair = name[:LONGEST_NAME].casefold(), candidate[:LONGEST_NAME].casefold()
    return SequenceMatcher(None, *pair).ratio()


def fingerprint(*parts: str) -> str:
    """16 hexadecimal digits (of SHA-256) for a sequence of strings; boundaries between them matter, the form
    of Unicode does not.
    """
    digest = hashlib.sha256()
    for part in parts:
        data = compose(part).encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()[:16]
