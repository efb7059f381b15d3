"""Remarks for the user that wait until it is clear that there is no error."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def held_notes() -> Iterator[list[warnings.WarningMessage]]:
    """Hold warnings, such as the notes on data sets, until the block ends, and yield the list of them.

    An error in the block drops them, so that the user sees the error alone.
    """
    with warnings.catch_warnings(record=True) as notes:
        yield notes
    for note in notes:
        warnings.showwarning(note.message, note.category, note.filename, note.lineno)
