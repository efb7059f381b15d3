"""How many prompts there may be, and how long. Light to import."""

from collections.abc import Iterable, Sequence

from dear.limits import at_most


def require_few(classnames: Sequence[str], templates: Sequence[str], embed: int) -> None:
    """Raise LimitError for too many prompts of classes for embeddings of this size, or too long ones."""
    where, prompts = f"{len(classnames):,} class names", len(classnames) * len(templates)
    at_most("prompts", prompts, where)
    at_most("text_features", prompts * embed, where)
    size = len(templates) * text_bytes(classnames) + len(classnames) * text_bytes(templates)
    at_most("prompt_text", size, where)


def text_bytes(texts: Iterable[str]) -> int:
    """The bytes of texts in UTF-8, which tokenizers take apart: an emoji has four."""
    return sum(len(text.encode(errors="surrogatepass")) for text in texts)
