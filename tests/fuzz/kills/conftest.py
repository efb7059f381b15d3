"""One launcher for all tests; it takes some seconds to import everything."""

from collections.abc import Iterator

import pytest

from tests.fuzz.kills.launcher import Launcher


@pytest.fixture(scope="session")
def launcher() -> Iterator[Launcher]:
    with Launcher() as made:
        yield made
