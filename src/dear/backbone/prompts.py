"""How many prompts there may be, and how long, and which of them a text tower cuts. Light to import."""

import re
from collections.abc import Sequence
from typing import Any, Protocol

from dear.backbone import openclip
from dear.errors import SettingsError
from dear.limits import at_most

EXAMPLES = 3
"""Classes that a warning of cut prompts names."""
MAX_LETTERS = 80
"""Letters of a name or a prompt that a message shows."""


def require_few(classnames: Sequence[str], templates: Sequence[str]) -> None:
    """Raise LimitError for too many prompts of classes, or too long names or templates."""
    where, prompts = f"{len(classnames):,} class names", len(classnames) * len(templates)
    at_most("prompts", prompts, where)
    longest = max(map(len, (*classnames, *templates)), default=0)
    at_most("class_name", longest, where)


class PromptReader(Protocol):
    """What reads prompts: a `Clip`, or a tokenizer alone."""

    @property
    def room(self) -> int:
        """The most tokens of a text that are read, without the start and the end."""

    def tokenize(self, texts: Sequence[str]) -> Any:
        """Ids as a tensor of text x token, cut to what is read."""

    def words_in(self, texts: Sequence[str]) -> Any:
        """The number of tokens of each text that are read, without the start and the end."""


class ClipReader:
    """CLIP's tokenizer without a model, as a `PromptReader`."""

    def __init__(self) -> None:
        self.tokenizer = openclip.SimpleTokenizer()
        self.room = int(self.tokenizer.context_length) - 2  # the start and the end

    def tokenize(self, texts: Sequence[str]) -> Any:
        """Ids, cut to the context."""
        return self.tokenizer(list(texts))

    def words_in(self, texts: Sequence[str]) -> Any:
        """The number of tokens of each text that are read: the end has the highest id."""
        return self.tokenize(texts).argmax(dim=-1) - 1


def describe_cut_prompts(
    reader: PromptReader, classnames: Sequence[str], prompts: Sequence[Sequence[str]], lead: str = ""
) -> str:
    """A warning that names the classes whose prompts are cut, with the part that is read; "" if all fit.

    ``prompts`` has a list for each template, with a prompt for each class; ``lead`` is what learned vectors
    replace at the start of each. Raises SettingsError for two classes of which the same part is read under
    all templates.
    """
    full_prompts = _full_prompts(reader, prompts)
    cut_labels = [
        label for label, prompt in full_prompts.items() if _count_tokens(reader, prompt) > reader.room
    ]
    if not cut_labels:
        return ""
    label_of = dict[bytes, int]()
    for label, prompt in full_prompts.items():
        ids = reader.tokenize([texts[label] for texts in prompts]).cpu().numpy().tobytes()
        twin = label_of.setdefault(ids, label)
        if twin != label:
            names = " as of ".join(repr(_start(classnames[index])) for index in (twin, label))
            raise SettingsError(
                f"the text tower reads {reader.room} tokens of a prompt, and so the same of {names}, up to "
                f"{_end(_readable_part(reader, prompt, lead))!r}: shorten the names or the template."
            )
    examples = [
        f"{_start(classnames[label])!r} up to {_end(_readable_part(reader, full_prompts[label], lead))!r}"
        for label in cut_labels[:EXAMPLES]
    ]
    more = f", and {len(cut_labels) - EXAMPLES} more" if len(cut_labels) > EXAMPLES else ""
    return f"class names cut, since the text tower reads {reader.room} tokens: {', '.join(examples)}{more}"


def _full_prompts(reader: PromptReader, prompts: Sequence[Sequence[str]]) -> dict[int, str]:
    """The first prompt of each class that takes all room, by the number of the class."""
    full_prompts = dict[int, str]()
    for texts in prompts:
        # A letter outside ASCII may be several tokens, one within is one at most.
        labels = [label for label, text in enumerate(texts) if len(text) >= reader.room or not text.isascii()]
        counts = reader.words_in([texts[label] for label in labels]).tolist() if labels else []
        for label, count in zip(labels, counts, strict=True):
            if count >= reader.room:
                full_prompts.setdefault(label, texts[label])
    return full_prompts


def _count_tokens(reader: PromptReader, text: str) -> int:
    """The number of tokens of a text; of one with more than are read, any number above that."""
    text = text.strip()
    count = int(reader.words_in([text])[0])
    if count < reader.room or len(text) < 2:
        return count
    middle = len(text) // 2
    space = text.find(" ", middle) if " " in text[middle:] else text.rfind(" ")
    split = space if space > 0 else middle
    count = _count_tokens(reader, text[:split])
    return count if count > reader.room else count + int(reader.words_in([text[split:]])[0])


def _readable_part(reader: PromptReader, prompt: str, lead: str) -> str:
    """The words and signs of a prompt, without the lead, that are read whole."""
    words = re.findall(r"\s*(?:\w+|[^\w\s])", prompt)
    low, high = 0, len(words)
    while low < high:
        middle = (low + high + 1) // 2
        fits = _count_tokens(reader, "".join(words[:middle])) <= reader.room
        low, high = (middle, high) if fits else (low, middle - 1)
    return "".join(words[:low]).removeprefix(lead).strip()


def _start(text: str) -> str:
    return text if len(text) <= MAX_LETTERS else f"{text[:MAX_LETTERS]}..."


def _end(text: str) -> str:
    return text if len(text) <= MAX_LETTERS else f"...{text[-MAX_LETTERS:]}"
