"""Remarks for the user that wait until it is clear that there is no error."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def held_notes() -> Iterator[list[warnings.WarningMessage]]:
    """Hold warnings, such as the notes on data sets, until the block ends; an error in it drops them, so that
    whoever reads it sees the error alone. Yields the list that they are held in.
    """
    with warnings.catch_warnings(record=True) as held:
        yield held
    for one in held:
        warnings.showwarning(one.message, one.category, one.filename, one.lineno)
