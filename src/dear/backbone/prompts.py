"""How many prompts there may be, by what it takes to clean and split them. Light to import."""

from collections.abc import Iterable, Sequence
from itertools import product

from dear.limits import at_most
from dear.reading.files import line_ends, text_bytes

REPEATED, OF_A_REPAIR = 4, 100
"""How often a byte counts of a prompt that may be repaired repeatedly, and bytes for each such prompt."""


def require_few(classnames: Sequence[str], templates: Sequence[str], embed: int) -> None:
    """Raise LimitError for too many prompts of classes for embeddings of this size, or too long ones."""
    where, prompts = f"{len(classnames):,} class names", len(classnames) * len(templates)
    at_most("prompts", prompts, where)
    at_most("text_features", prompts * embed, where)
    work = 0
    for (times, names), (again, some) in product(_by_repairs(classnames), _by_repairs(templates)):
        size = len(some) * text_bytes(names) + len(names) * text_bytes(some)
        work += _work(max(times, again), size, len(names) * len(some))
    at_most("prompt_text", work, where)


def prompt_work(prompts: Iterable[str]) -> int:
    """The bytes of prompts, as they count by what it takes to clean them."""
    return sum(_work(times, text_bytes(texts), len(texts)) for times, texts in _by_repairs(prompts))


def _work(times: int, size: int, prompts: int) -> int:
    return times * (size + (OF_A_REPAIR * prompts if times == REPEATED else 0))


def _by_repairs(texts: Iterable[str]) -> list[tuple[int, list[str]]]:
    """Texts by how many times as long as for plain ASCII it takes to clean and split them: open_clip's
    library ftfy repairs others, and line by line, or again, those with line ends or signs of HTML.
    """
    kinds: dict[int, list[str]] = {1: [], 2: [], REPEATED: []}
    for text in texts:
        is_plain = text.isascii() and text.isprintable()
        is_repeated = "&" in text or (not is_plain and line_ends(text) > 0)
        kinds[REPEATED if is_repeated else 2 - is_plain].append(text)
    return [*kinds.items()]
