"""Work that takes long, beside the event loop."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Result = TypeVar("Result")


async def run_in(threads: ThreadPoolExecutor, work: Callable[..., Result], *arguments: object) -> Result:
    """The result of work in one of some threads."""
    return await asyncio.get_running_loop().run_in_executor(threads, work, *arguments)
