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
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from cyclopts import (
    App,
    ArgumentCollection,
    CycloptsError,
    Parameter,
    UnknownCommandError,
    UnknownOptionError,
)
from cyclopts.config import Dict

from dear.cli.output import json_text, stdout_console
from dear.cli.parsing import (
    STDIN,
    UsageError,
    command_line,
    expand_methods,
    named_methods,
    options_as_yaml,
    with_method_settings,
)
from dear.cli.registry import OF_EVERY_COMMAND, build_app, load_command
from dear.errors import DearError, Detail, UnknownNameError, first_line, of_memory, of_the_disk
from dear.methods.registry import METHODS
from dear.reading.plain import read_yaml
from dear.text import likely, printable

DONE, PARTLY, USER_ERROR, INTERRUPTED, READER_GONE, TERMINATED = 0, 1, 2, 130, 141, 143
RESUMED = ("fit ", "run ", "index build", "suggest ")
COMMON = Parameter(group=OF_EVERY_COMMAND, negative=())
PIPED_WIDTH = 160
OF_THE_FRAME = ("--config", "--print-config", "--json", "--verbose", "--threads")
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
    _take_any_names()
    command_line.set(shlex.join(["dear", *words]))
    try:
        with _terminable(), warnings.catch_warnings():
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
def _terminable() -> Iterator[None]:
    """Let SIGTERM end the command as Ctrl-C does, so that partial files and locks are removed. Does nothing
    if the calling program has its own handler, or in another thread, where Python forbids it.
    """
    ours = threading.current_thread() is threading.main_thread()
    if not ours or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return

    def end(_number: int, _frame: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise Terminated

    signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def load_app(words: Sequence[str]) -> App:
    """The application, with the command that the words name and its settings of methods."""
    app = build_app()
    leaf = load_command(app, words)
    if (command := leaf.default_command) is not None:
        methods = expand_methods(named_methods(words, command))
        only = methods if {*app.help_flags} & {*words} else METHODS
        leaf.default_command = with_method_settings(command, only)

    @app.meta.default
    def dispatch(
        *words: Annotated[str, Parameter(show=False, allow_leading_hyphen=True)],
        config: Annotated[list[Path] | None, COMMON] = None,
        print_config: Annotated[bool, COMMON] = False,
        json: Annotated[bool, COMMON] = False,
        verbose: Annotated[bool, COMMON] = False,
        threads: Annotated[int | None, COMMON] = None,
    ) -> int:
        """Run a command.

        Args:
            config: Read options from a YAML file. Those on the command line come first.
            print_config: Print the options as YAML and exit.
            json: Print one JSON object, for programs.
            verbose: Also print notes that need no action, such as how data without a split was divided.
            threads: Threads on the CPU, for each run. By default one for a small model, and for others all
                cores, divided among --jobs.
        """
        app.config = [partial(_apply_options, path) for path in reversed(config or [])]
        plain = [STDIN if word.encode() == b"-" else word for word in words]
        command, bound, _ = app.parse_args(plain)
        bound.apply_defaults()
        if print_config:
            print(options_as_yaml(bound), end="")
            return DONE
        warnings.simplefilter("always" if verbose else "ignore", Detail)
        if threads is not None:
            from dear.backbone.device import request_threads

            request_threads(threads)
        result = command(*bound.args, **bound.kwargs)
        return DONE if result is None else show_result(result, command, as_json=json)  # None after help

    return app


def _apply_options(path: Path, app: App, command: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """Give a command the options of a file, which cyclopts looks for below the words of its name."""
    values = read_yaml(path, as_text=True)
    for word in reversed(command):
        values = {word: values}
    Dict(values, source=str(path))(app, command, arguments)


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
    if isinstance(error, UnknownOptionError) and "Did you mean" not in message:
        nearest = likely(error.token.keyword or "", OF_THE_FRAME)
        message += f" Did you mean {nearest}?" if nearest else ""
    return f"{message} See `dear {' '.join(error.command_chain or ())} --help`."


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
