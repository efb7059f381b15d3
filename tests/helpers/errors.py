"""What is refused, and that the message names what the user gave."""

from collections.abc import Callable
from typing import Any

import pytest


def refuses(
    error: type[Exception], given: str | tuple[str, ...], call: Callable[..., Any], *args: Any, **options: Any
) -> str:
    """A call raises an error of this class, whose message, a line, has all that is ``given``. Returns it."""
    with pytest.raises(error) as caught:
        call(*args, **options)
    message = str(caught.value)
    assert "\n" not in message
    missing = [words for words in ([given] if isinstance(given, str) else given) if words not in message]
    assert not missing, f"{missing} not in: {message}"
    return message
