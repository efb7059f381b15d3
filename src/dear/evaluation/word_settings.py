"""What a search for attribute words may be asked for. Light to import, so that a command can refuse settings
before torch is loaded.
"""

import math
from collections.abc import Sequence

from dear.errors import SettingsError
from dear.methods.registry import METHODS, known_method
from dear.training.settings import TrainSettings

MOST_WORDS = 8


def check_search(
    method: str, words: Sequence[str], sizes: tuple[int, int], shots: int, weight_lr: float
) -> None:
    """Raise UnknownNameError for the method, SettingsError for words that cannot be combined, for fewer than
    one shot, and for a rate that is not above 0.
    """
    if not METHODS[known_method(method)].takes_words:
        able = ", ".join(name for name, one in METHODS.items() if one.takes_words)
        raise SettingsError(f"{method} has no attribute words in its prompts; these have: {able}.")
    if twice := [word for word in {*words} if words.count(word) > 1]:
        raise SettingsError(f"the word {min(twice)!r} is given more than once: give each word once.")
    if not 1 <= len(words) <= MOST_WORDS:
        raise SettingsError(f"{len(words)} words: give 1 to {MOST_WORDS}.")
    least, most = sizes
    if not 1 <= least <= most <= len(words):
        raise SettingsError(
            f"combinations of {least} to {most} words: they must be of 1 to {len(words)}, the number of "
            "words."
        )
    if shots < 1:
        raise SettingsError(f"shots is {shots}: it must be at least 1.")
    if not 0 < weight_lr < math.inf:
        raise SettingsError(f"weight_lr is {weight_lr}: it must be above 0.")


def search_settings(epochs: int = 40, batch: int = 32, lr: float = 0.002, chunk: int = 0) -> TrainSettings:
    """Settings of training for a search; the defaults are ATPrompt's. Raises SettingsError."""
    return TrainSettings(
        epochs=epochs,
        batch=batch,
        lr=lr,
        optimizer="sgd",
        drop_last=True,
        crop=0.08,
        text_chunk=chunk,
    )


def candidates(words: Sequence[str]) -> tuple[str, ...]:
    """The words without spaces around them. Raises SettingsError for one that is empty or has a comma."""
    found = tuple(word.strip() for word in words)
    if any(not word or "," in word for word in found):
        raise SettingsError(f"the words are {[*words]}: each must be one word, without commas.")
    return found
