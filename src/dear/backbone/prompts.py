"""How many prompts there may be, by what it takes to clean and split them, and which of them a text tower
cuts. Light to import.
"""

import re
from collections.abc import Iterable, Sequence
from itertools import product
from typing import Any, Protocol

from dear.errors import SettingsError
from dear.limits import at_most
from dear.reading.files import line_ends, text_bytes

NAMED = 3
"""Classes that a warning of cut prompts names."""
SHOWN = 80
"""Letters of a name or a prompt that a message shows."""

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


class PromptReader(Protocol):
    """What reads prompts: a `Clip`, or a tokenizer alone."""

    @property
    def room(self) -> int:
        """The most tokens of a text that are read, without the start and the end."""

    def tokenize(self, texts: Sequence[str]) -> Any:
        """Ids as a tensor of text x token, cut to what is read."""

    def words_in(self, texts: Sequence[str]) -> Any:
        """The number of tokens of each text that are read, without the start and the end."""


def cut_prompts(
    reader: PromptReader, classnames: Sequence[str], prompts: Sequence[Sequence[str]], lead: str = ""
) -> str:
    """A warning that names the classes whose prompts are cut, and what is left of them; "" if all fit.

    ``prompts`` has a list for each template, with a prompt for each class; ``lead`` is what learned vectors
    replace at the start of each. Raises SettingsError for two classes of which the same is left everywhere.
    """
    full = _full_prompts(reader, prompts)
    cut = {label: prompt for label, prompt in full.items() if _tokens(reader, prompt) > reader.room}
    if not cut:
        return ""
    left = {label: _readable_part(reader, prompt, lead) for label, prompt in cut.items()}
    label_of = dict[bytes, int]()
    for label in full:
        ids = reader.tokenize([texts[label] for texts in prompts]).cpu().numpy().tobytes()
        other = label_of.setdefault(ids, label)
        if other != label:
            part = left.get(label, left.get(other, ""))
            raise SettingsError(
                f"the text tower reads {reader.room} tokens of a prompt, and so the same of "
                f"{_start(classnames[other])!r} as of {_start(classnames[label])!r}, up to {_end(part)!r}: "
                "shorten the names or the template."
            )
    named = [f"{_start(classnames[label])!r} up to {_end(part)!r}" for label, part in [*left.items()][:NAMED]]
    more = f", and {len(cut) - NAMED} more" if len(cut) > NAMED else ""
    return f"class names cut, since the text tower reads {reader.room} tokens: {', '.join(named)}{more}"


def _full_prompts(reader: PromptReader, prompts: Sequence[Sequence[str]]) -> dict[int, str]:
    """The first prompt of each class that takes all room, by the number of the class."""
    full = dict[int, str]()
    for texts in prompts:
        # A letter outside ASCII may be several tokens, one within is one at most.
        long = [label for label, text in enumerate(texts) if len(text) >= reader.room or not text.isascii()]
        counts = reader.words_in([texts[label] for label in long]).tolist() if long else []
        for label, count in zip(long, counts, strict=True):
            if count >= reader.room:
                full.setdefault(label, texts[label])
    return full


def _tokens(reader: PromptReader, text: str) -> int:
    """The number of tokens of a text, or of a part of it that has more than are read."""
    count = int(reader.words_in([text])[0])
    if count < reader.room or len(text) < 2:
        return count
    middle = len(text) // 2
    at = text.find(" ", middle) if " " in text[middle:] else text.rfind(" ")
    first, second = (text[:at], text[at:]) if at > 0 else (text[:middle], text[middle:])
    before = _tokens(reader, first)
    return before if before > reader.room else before + int(reader.words_in([second])[0])


def _readable_part(reader: PromptReader, prompt: str, lead: str) -> str:
    """The words and signs of a prompt, without the lead, that are read whole."""
    words = re.findall(r"\s*(?:\w+|[^\w\s])", prompt)
    low, high = 0, len(words)
    while low < high:
        middle = (low + high + 1) // 2
        fits = _tokens(reader, "".join(words[:middle])) <= reader.room
        low, high = (middle, high) if fits else (low, middle - 1)
    return "".join(words[:low]).removeprefix(lead).strip()


def _start(text: str) -> str:
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def _end(text: str) -> str:
    return text if len(text) <= SHOWN else f"...{text[-SHOWN:]}"
