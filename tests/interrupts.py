"""Interrupt a call between any two lines of a module, as a signal does."""

import sys
from collections.abc import Callable
from types import FrameType, ModuleType
from typing import Any


def interrupt_at_each_line(module: ModuleType, work: Callable[[], object], check: Callable[[], None]) -> int:
    """Call ``work`` with a KeyboardInterrupt before its first line in the module, its second, and so on.

    Ends once it ends well; ``check`` follows each of the other calls. Returns their number. ``work`` starts
    from the same state each time, else lines are skipped.
    """
    for last in range(1, 10_000):
        passed = 0

        def line(_frame: FrameType, event: str, _arg: Any, last: int = last) -> Any:
            nonlocal passed
            passed += event == "line"
            if passed == last and event == "line":
                raise KeyboardInterrupt  # which ends the tracing, too
            return line

        def call(frame: FrameType, _event: str, _arg: Any, line: Any = line) -> Any:
            return line if frame.f_code.co_filename == module.__file__ else None

        before = sys.gettrace()
        sys.settrace(call)
        try:
            work()
        except KeyboardInterrupt:
            sys.settrace(before)
            check()
        else:
            return last - 1
        finally:
            sys.settrace(before)
    raise AssertionError("it does not end")
