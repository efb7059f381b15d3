"""Versions of a file's structure, and the steps from an old one to today's (docs/compatibility.md)."""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from dear.reading.files import ReadingError

Step = Callable[[dict[str, Any]], dict[str, Any]]


@dataclass
class Schema:
    """A kind of file with numbered structures.

    Attributes:
        now: The number that this version writes.
        steps: By number, how content of that schema becomes content of the next one.
    """

    now: int
    steps: Mapping[int, Step] = field(default_factory=dict)

    @property
    def oldest(self) -> int:
        """The oldest number from which the steps lead to today's without a gap."""
        number = self.now
        while number - 1 in self.steps:
            number -= 1
        return number

    def current(self, content: dict[str, Any], place: object) -> dict[str, Any]:
        """The content brought up to today's schema; unchanged if no steps lead from its number, which the
        caller then refuses. The given content is not changed.

        Raises ReadingError naming ``place`` for content that a step cannot read.
        """
        number = content.get("schema")
        if type(number) is not int or not self.oldest <= number < self.now:
            return content
        while number < self.now:
            try:
                content = self.steps[number](copy.deepcopy(content)) | {"schema": number + 1}
            except (LookupError, TypeError, ValueError, AttributeError) as error:  # what the file lacks
                reason = f"its content is not of schema {number} ({type(error).__name__}: {error})"
                raise ReadingError(place, reason) from error
            number += 1
        return content
