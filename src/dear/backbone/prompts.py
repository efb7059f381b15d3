"""Limits on the number and length of prompts, and which of them a text tower cuts. Light to import."""

from collections.abc import Sequence
from typing import Any, Protocol

from dear.backbone import openclip
from dear.errors import SettingsError
from dear.limits import require_at_most
from dear.text import list_names

EXAMPLES = 3
"""Classes that a warning about cut prompts names."""
MAX_LETTERS = 80
"""Letters of a name that a message shows."""


def check_prompt_limits(classnames: Sequence[str], templates: Sequence[str]) -> None:
    """Raise LimitError for too many prompts, or for names or templates that are too long."""
    where, prompts = f"{len(classnames):,} class names", len(classnames) * len(templates)
    require_at_most("prompts", prompts, where)
    longest = max(map(len, (*classnames, *templates)), default=0)
    require_at_most("class_name", longest, where)


class PromptReader(Protocol):
    """What reads prompts: a `Clip`, or a tokenizer alone."""

    @property
    def max_words(self) -> int:
        """The most tokens of a text that are read, without the start and the end."""

    def tokenize(self, texts: Sequence[str]) -> Any:
        """Ids as a tensor of text x token, cut to what is read."""

    def words_in(self, texts: Sequence[str]) -> Any:
        """The number of tokens of each text that are read, without the start and the end."""


class ClipReader:
    """CLIP's tokenizer without a model, as a `PromptReader`."""

    def __init__(self) -> None:
        self.tokenizer = openclip.SimpleTokenizer()
        self.max_words = int(self.tokenizer.context_length) - 2  # the start and the end

    def tokenize(self, texts: Sequence[str]) -> Any:
        """Ids, cut to the context."""
        return self.tokenizer(list(texts))

    def words_in(self, texts: Sequence[str]) -> Any:
        """The number of tokens of each text that are read: the end has the highest id."""
        return self.tokenize(texts).argmax(dim=-1) - 1


def describe_cut_prompts(
    reader: PromptReader, classnames: Sequence[str], prompts: Sequence[Sequence[str]]
) -> str:
    """A warning that names the classes whose prompts are cut; "" if all fit.

    ``prompts`` has a list for each template, with a prompt for each class. Raises SettingsError for two
    classes whose prompts, once cut, are the same under all templates.
    """
    full_prompts = _full_prompts(reader, prompts)
    cut = [label for label, prompt in full_prompts.items() if _is_cut(reader, prompt)]
    if not cut:
        return ""
    label_of = dict[bytes, int]()
    for label in full_prompts:
        ids = reader.tokenize([texts[label] for texts in prompts]).cpu().numpy().tobytes()
        twin = label_of.setdefault(ids, label)
        if twin != label:
            names = " and ".join(_shorten(classnames[index]) for index in (twin, label))
            raise SettingsError(
                f"the text tower reads {reader.max_words} tokens of a prompt, which are the same for "
                f"{names}: shorten the names or the template."
            )
    names = list_names([_shorten(classnames[label]) for label in cut], EXAMPLES)
    return f"class names cut, since the text tower reads {reader.max_words} tokens: {names}"


def _full_prompts(reader: PromptReader, prompts: Sequence[Sequence[str]]) -> dict[int, str]:
    """The first prompt of each class that fills what the text tower reads, by the label of the class."""
    full_prompts = dict[int, str]()
    for texts in prompts:
        # A letter outside ASCII may be several tokens; one of ASCII is at most one.
        labels = [
            label for label, text in enumerate(texts) if len(text) >= reader.max_words or not text.isascii()
        ]
        counts = reader.words_in([texts[label] for label in labels]).tolist() if labels else []
        for label, count in zip(labels, counts, strict=True):
            if count >= reader.max_words:
                full_prompts.setdefault(label, texts[label])
    return full_prompts


def _is_cut(reader: PromptReader, text: str) -> bool:
    """True if a prompt with as many words as are read has more: its last word is counted apart."""
    start, _, word = text.strip().rpartition(" ")
    parts = [start, word] if start else [word[: len(word) // 2], word[len(word) // 2 :]]
    return int(reader.words_in(parts).sum()) > reader.max_words


def _shorten(name: str) -> str:
    return repr(name if len(name) <= MAX_LETTERS else f"{name[:MAX_LETTERS]}...")
