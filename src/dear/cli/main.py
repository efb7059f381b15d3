"""The entry point of `dear`: find the command, parse its options, run it, turn errors into exit codes.

Exit codes: 0 done, 1 done in part (some images could not be read) or faults found, 2 an error that the user
can fix (a DearError, a full disk or too little memory; in a dry run, an error that would stop the run), 130
interrupted, 141 the reader of stdout disconnected, 143 ended by SIGTERM. Any other exception is a bug and
keeps its traceback.
With `--json` an error is one JSON object on stdout, `{"error": message, "kind": name of the error}`, and its
message is also printed on stderr.
"""

import errno
import io
import os
import shlex
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from inspect import BoundArguments
from typing import Annotated, Any

from cyclopts import App, CycloptsError, Parameter, UnknownCommandError, UnknownOptionError

from dear.cli.output import json_text, stdout_console
from dear.cli.parsing import (
    STDIN,
    UsageError,
    command_line,
    expand_methods,
    named_methods,
    with_method_settings,
)
from dear.cli.registry import OF_EVERY_COMMAND, build_app, load_command
from dear.errors import DearError, Detail, UnknownNameError, first_line, of_memory, of_the_disk
from dear.methods.registry import METHODS
from dear.text import likely, printable
from dear.threads import end_process

DONE, PARTLY, USER_ERROR, INTERRUPTED, READER_GONE, TERMINATED = 0, 1, 2, 130, 141, 143
RESUMED = ("fit ", "refit ", "run ", "index build", "suggest ")
COMMON = Parameter(group=OF_EVERY_COMMAND, negative=())
PIPED_WIDTH = 160
OF_THE_FRAME = ("--json", "--verbose", "--threads")
LESS_MEMORY = "End other programs, or take a smaller model or batch, or fewer classes and templates."
SAFE_PATH = ("PYTHONSAFEPATH", "1")
"""A worker begins as `python -c ...`, which would import multiprocessing from the current folder."""


class Terminated(BaseException):
    """SIGTERM as an exception, like KeyboardInterrupt for Ctrl-C, so that cleanup code runs."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run `dear` with the given words, by default the process's own; return the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    if argv is None:  # a program that calls this function has its own environment
        os.environ.setdefault(*SAFE_PATH)
    _open_closed_streams()
    _take_any_names()
    command_line.set(shlex.join(["dear", *words]))
    try:
        with _interruptible(ends=argv is None), warnings.catch_warnings():
            warnings.showwarning = _warn
            dispatch, bound, _ = load_app(words).meta.parse_args(words)
            code: int = dispatch(*bound.args, **bound.kwargs) or DONE
            sys.stdout.flush()
            return code
    except BrokenPipeError:
        _leave_stdout()
        return READER_GONE
    except BaseException as error:
        explained = _explain(error)
        if explained is None:
            raise
        return _fail(words, *explained)


def _explain(error: BaseException) -> tuple[int, str, str] | None:
    """The exit code, the kind and the message of an error that the user can fix; None for a bug."""
    match error:
        case UnknownCommandError():
            names = [name for name in error.app or () if not name.startswith("-")]
            return _explain(UnknownNameError("command", (error.unused_tokens or [""])[0], names))
        case CycloptsError():
            return _explain(UsageError(_in_one_line(error)))
        case UnicodeEncodeError():
            return _explain(UsageError(f"{error.object!r} is not in UTF-8."))
        case DearError():
            return USER_ERROR, type(error).__name__, f"error: {error}"
        case KeyboardInterrupt():
            return INTERRUPTED, "Interrupted", "interrupted"
        case Terminated():
            return TERMINATED, "Terminated", "terminated"
        case OSError(errno=errno.ENAMETOOLONG):
            kind, message = "UsageError", f"the file name {str(error.filename)[:100]}... is too long."
        case OSError() if of_the_disk(error):
            place = error.filename or "the output"
            kind = "OutputError"
            message = f"cannot write {place}: {error.strerror}. Free some space or use another place."
        case MemoryError() | OSError() | RuntimeError() if of_memory(error):
            kind, message = "UsageError", f"there is not enough memory ({first_line(error)}). {LESS_MEMORY}"
        case _:
            return None
    return USER_ERROR, kind, f"error: {message}"


@contextmanager
def _interruptible(*, ends: bool) -> Iterator[None]:
    """Let Ctrl-C and SIGTERM end the command once, so that partial files and locks are removed: a second
    Ctrl-C would leave them. A signal for which the calling program has its own handler stays with it, and
    so do all in another thread, where Python forbids it. If the process ``ends`` with the command, it stays
    deaf to what has ended it.
    """
    kinds = {signal.SIGINT: KeyboardInterrupt, signal.SIGTERM: Terminated}
    defaults = (signal.SIG_DFL, signal.default_int_handler, end_process)

    def end(number: int, _frame: object) -> None:
        signal.signal(number, signal.SIG_IGN)
        raise kinds[signal.Signals(number)]

    before = {number: signal.getsignal(number) for number in kinds}
    ours = threading.current_thread() is threading.main_thread()
    handled = [number for number in kinds if ours and before[number] in defaults]
    for number in handled:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in handled:
            if not ends or signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, before[number])


def load_app(words: Sequence[str]) -> App:
    """The application, with the command that the words name and its settings of methods; its meta
    application has the options of every command.
    """
    app = build_app()
    leaf = load_command(app, words)
    if (command := leaf.default_command) is not None:
        methods = expand_methods(named_methods(words, command))
        only = methods if {*app.help_flags} & {*words} else METHODS
        leaf.default_command = with_method_settings(command, only)

    @app.meta.default
    def dispatch(
        *words: Annotated[str, Parameter(show=False, allow_leading_hyphen=True)],
        json: Annotated[bool, COMMON] = False,
        verbose: Annotated[bool, COMMON] = False,
        threads: Annotated[int | None, COMMON] = None,
    ) -> int:
        """Run a command.

        Args:
            json: Print one JSON object, for programs.
            verbose: Also print notes that need no action, such as how data without a split was divided.
            threads: Threads on the CPU, for each run. By default one for a small model, and for others all
                cores, divided among --jobs.
        """
        command, bound = parse(app, words)
        warnings.simplefilter("always" if verbose else "ignore", Detail)
        if threads is not None:
            from dear.backbone.device import request_threads

            request_threads(threads)
        result = command(*bound.args, **bound.kwargs)
        return DONE if result is None else show_result(result, command, as_json=json)  # None after help

    return app


def parse(app: App, words: Sequence[str]) -> tuple[Callable[..., Any], BoundArguments]:
    """The command that words name, and its arguments. Raises CycloptsError, UsageError."""
    command, bound, _ = app.parse_args([STDIN if word.encode() == b"-" else word for word in words])
    bound.apply_defaults()
    return command, bound


def show_result(result: Any, command: Callable[..., Any], *, as_json: bool) -> int:
    """Show what a command returned, as one JSON object or by its renderer; return the exit code."""
    module, name = sys.modules[command.__module__], command.__name__.replace("command", "render")
    if as_json:
        print(json_text(result, indent=2))
    else:
        getattr(module, name if hasattr(module, name) else "render")(result, stdout_console(PIPED_WIDTH))
    sys.stdout.flush()
    if refusal := getattr(result, "refusal", None):
        print(f"dear: error: {printable(refusal)}", file=sys.stderr)
        return USER_ERROR
    return PARTLY if getattr(result, "partly", False) else DONE


def _in_one_line(error: CycloptsError) -> str:
    """What is wrong with the words, and which option they may mean, those of every command too."""
    message = " ".join(str(error).replace(STDIN, "-").split())
    if isinstance(error, UnknownOptionError):
        message = message.partition(" Did you mean")[0]  # cyclopts has the words without a dash among them
        options = [option for option in error.argument_collection if option.index is None]
        wrong = (error.token.keyword or error.token.value).partition("=")[0]
        nearest = likely(wrong, [*OF_THE_FRAME, *(name for option in options for name in option.names)])
        message += f" Did you mean {nearest}?" if nearest else ""
    return f"{message} See `dear {' '.join(error.command_chain or ())} --help`."


def _open_closed_streams() -> None:
    """Write to nowhere where the caller closed stdout or stderr, for which Python has None, and read nothing
    from a closed stdin.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115


def _take_any_names() -> None:
    """Accept file names outside the terminal's encoding on stdin and print them, escaped, on stdout."""
    for stream, errors in ((sys.stdin, "surrogateescape"), (sys.stdout, "backslashreplace")):
        if isinstance(stream, io.TextIOWrapper):
            with suppress(OSError, ValueError):  # closed, or already read from
                stream.reconfigure(errors=errors)


def _leave_stdout() -> None:
    """Discard what is left in the buffer, so that Python does not complain about it at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _warn(message: Warning | str, category: type[Warning], *place: Any, **_: Any) -> None:
    """Print warnings meant for users in one line, without the source location; others as Python does."""
    if category in (UserWarning, Detail):
        print(f"dear: note: {printable(str(message))}", file=sys.stderr)
    else:
        print(warnings.formatwarning(message, category, *place[:2]), end="", file=sys.stderr)


def _fail(words: Sequence[str], code: int, kind: str, message: str) -> int:
    """Print an error, with --json as an object too; either stream may be on a full disk."""
    resumes = " ".join(words[:2]).startswith(RESUMED) or {"predict", "--out"} <= {*words}
    if kind in ("Interrupted", "Terminated") and resumes:
        message += ": give the same command to continue"
    try:
        if "--json" in words:
            print(json_text({"error": message.removeprefix("error: "), "kind": kind}))
        sys.stdout.flush()
    except OSError:
        _leave_stdout()
    with suppress(OSError):
        print(f"dear: {printable(message)}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
