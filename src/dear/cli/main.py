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
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager, suppress
from itertools import takewhile
from typing import Any, TextIO

from dear import __version__
from dear.cli.registry import COMMANDS, Command
from dear.errors import (
    DearError,
    OutputError,
    UnknownNameError,
    first_line,
    of_memory,
    of_the_disk,
    printable,
)

DONE, PARTLY, USER_ERROR, INTERRUPTED, READER_GONE, TERMINATED = 0, 1, 2, 130, 141, 143
RESUMED = ("fit ", "run ", "index build")
HELP, HELP_ALL = {"-h", "--help", "--help-all"}, "--help-all"
FULL_STDOUT = "cannot write to stdout: {}. Free some space, or redirect the output elsewhere."
LESS_MEMORY = "End other programs, or take a smaller model or batch, or fewer classes and templates."
WAITING = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "0", "KMP_BLOCKTIME": "0"}
"""Threads that wait for others sleep, with GNU's OpenMP, which torch has on Linux, and with LLVM's and
Intel's. By default they keep asking, at full load: where the others wait for a core that another process
uses, that takes the core from them for even longer.
"""
PAGES = {"THP_MEM_ALLOC_ENABLE": "1"}
"""Large pages for large tensors: the system clears the memory of each new one, which in small pages takes a
third of the processor time of a fit without gradients.
"""
SAFE_PATH = {"PYTHONSAFEPATH": "1"}
"""A worker begins as `python -c ...`, which would import multiprocessing from the current folder."""
COUNTS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "DEAR_THREADS")


class Terminated(BaseException):
    """SIGTERM as an exception, like KeyboardInterrupt for Ctrl-C, so that cleanup code runs."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run `dear` with the given words, by default the process's own; return the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    if argv is None:  # a program that calls this function has its own environment
        prepare(os.environ)
    _take_any_names()
    try:
        with _terminable(), warnings.catch_warnings():
            warnings.showwarning = _warn
            code = dispatch(words, COMMANDS)
        sys.stdout.flush()
    except DearError as error:
        return _fail(words, str(error), type(error).__name__, USER_ERROR)
    except KeyboardInterrupt:
        return _fail(words, f"interrupted{_remedy(words)}", "Interrupted", INTERRUPTED)
    except Terminated:
        return _fail(words, f"terminated{_remedy(words)}", "Terminated", TERMINATED)
    except BrokenPipeError:
        _leave_stdout()
        return READER_GONE
    except (MemoryError, OSError, RuntimeError) as error:
        message = _about_a_name(error)
        if message is None and of_memory(error):
            message = f"there is not enough memory ({first_line(error)}). {LESS_MEMORY}"
        if message is not None:
            return _fail(words, message, "UsageError", USER_ERROR)
        message = _about_the_disk(error)
        if message is None:
            raise
        return _fail(words, message, "OutputError", USER_ERROR)
    return code


def prepare(environment: MutableMapping[str, str]) -> None:
    """Let waiting threads sleep, large tensors have large pages, and the model's size decide how many threads
    there are; let processes import nothing from the current folder. It is set before torch is loaded, for
    worker processes too; what the user has set stays.
    """
    if not any(name in environment for name in WAITING):
        environment.update(WAITING)
    for name, value in (PAGES | SAFE_PATH).items():
        environment.setdefault(name, value)
    if not any(name in environment for name in COUNTS):
        environment["DEAR_THREADS"] = "auto"


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


def dispatch(words: Sequence[str], commands: Mapping[str, Command]) -> int:
    """Run the command that the first words name, with the rest as its options.

    Raises:
        UnknownNameError: if they do not name a command.
        DearError: whatever the command raises.
    """
    name, options = split_name(words, commands)
    if not name:
        if "--version" in options:
            print(f"dear {__version__}")
        else:
            print(overview(commands))
        return DONE
    if name not in commands:
        if not any(command.startswith(f"{name} ") for command in commands):
            raise UnknownNameError("command", name, commands, see="dear --help")
        print(overview(commands, group=name))
        return DONE

    from dear.cli.output import emit
    from dear.cli.parsing import THREADS, build_parser

    _require_no_files(options)
    command, render = commands[name].load()
    methods = _methods_of(options, command)
    parser = build_parser(name, command)
    if HELP & {*_before_names(options)}:
        from dear.cli.help import help_text

        print(help_text(parser, _known(methods), everything=HELP_ALL in options), end="")
        return DONE
    keywords, frame = parser.parse(options)
    if frame.print_config:
        print(parser.as_yaml(keywords), end="")
        return DONE
    if (threads := keywords.pop(THREADS, None)) is not None:
        from dear.backbone.device import request_threads

        request_threads(threads)
    result = command(**keywords)
    try:
        emit(result, frame.json, render)
        sys.stdout.flush()
    except OSError as error:
        if not of_the_disk(error):
            raise
        _leave_stdout()
        raise OutputError(FULL_STDOUT.format(error.strerror)) from error
    if refusal := getattr(result, "refusal", None):
        print(f"dear: error: {printable(refusal)}", file=sys.stderr)
        return USER_ERROR
    return PARTLY if getattr(result, "partly", False) else DONE


OF_THE_HUB = ("hf:", "hf-hub:")
"""The beginnings of the names of data sets and models of the hub."""


def _before_names(options: Sequence[str]) -> list[str]:
    """The words before "--", behind which there are only names of files."""
    return list(takewhile(lambda word: word != "--", options))


def _require_no_files(options: Sequence[str]) -> None:
    """Raise UsageError for an option, or a name of the hub, that is the name of a file here: the shell puts
    it in the place of "*", and whoever made the folder would choose the options, such as a class to import,
    or another folder to read, as "hf:~".
    """
    from dear.cli.parsing import UsageError

    for word in options:
        if word.startswith(OF_THE_HUB) and os.path.lexists(word):
            raise UsageError(
                f"{word[:100]!r} is the name of a file in this folder, and would be one of the hub: write "
                "./* for the files of this folder, or rename it."
            )
    for word in _before_names(options):
        if (word.startswith("--") or word in HELP) and os.path.lexists(word):
            raise UsageError(
                f"{word[:100]!r} is the name of a file in this folder, and would be an option: write ./* for "
                "the files of this folder, or rename it."
            )


def _methods_of(options: Sequence[str], command: Callable[..., Any]) -> list[str]:
    """The names that --method or --methods gives to a command that has the option; classes outside the
    package are registered as methods, so that they have options.
    """
    from dear.cli.parsing import names_of
    from dear.methods.registry import PATH, register

    names, parameters, words = list[str](), names_of(command), _before_names(options)
    for before, word in zip(["", *words], words, strict=False):
        option, equals, value = word.partition("=") if word.startswith("--") else (before, "=", word)
        if option in ("--methods", "--method") and option[2:] in parameters and equals:
            names += filter(None, (name.strip() for name in value.split(",")))
    for name in filter(PATH.fullmatch, names):
        register(name)
    return names


def _known(names: Sequence[str]) -> list[str]:
    """The methods with these names, which may be "all". Raises UnknownNameError."""
    from dear.evaluation.plan import expand_all
    from dear.methods.registry import METHODS, known_method

    return [known_method(name) for name in expand_all(names, tuple(METHODS))]


def split_name(words: Sequence[str], commands: Mapping[str, Command]) -> tuple[str, list[str]]:
    """Split the words into the command's name, which may be two words long, and its options.

    The name is the longest known one; otherwise the first word, plus the second if the first begins
    a known name.
    """
    leading = [
        word for index, word in enumerate(words) if not any(w.startswith("-") for w in words[: index + 1])
    ]
    for length in range(len(leading), 0, -1):
        if " ".join(leading[:length]) in commands:
            return " ".join(leading[:length]), list(words[length:])
    is_group = leading and any(command.startswith(f"{leading[0]} ") for command in commands)
    length = min(2 if is_group else 1, len(leading))
    return " ".join(leading[:length]), list(words[length:])


def overview(commands: Mapping[str, Command], group: str = "") -> str:
    """The help of `dear` itself, or of the commands that begin with the same word."""
    visible = {
        name: command for name, command in commands.items() if not group or name.startswith(f"{group} ")
    }
    width = max(len(name) for name in visible) + 2
    lines = [f"usage: dear {group + ' ' if group else ''}COMMAND [options]", ""]
    if not group:
        lines += ["DeAR: adapting a CLIP model by the roles of its attention heads.", ""]
    headings = [""] if group else dict.fromkeys(command.group for command in visible.values())
    for heading in headings:
        listed = {name: command for name, command in visible.items() if group or command.group == heading}
        lines += [
            heading or "commands:",
            *(f"  {name:{width}}{command.summary}" for name, command in listed.items()),
            "",
        ]
    lines += ["'dear COMMAND --help' shows a command's options. Every command takes --json."]
    if not group:
        lines += ["'dear --version' prints the version."]
    return "\n".join(lines)


def _take_any_names() -> None:
    """Accept file names outside the terminal's encoding on stdin and print them, escaped, on stdout."""
    for stream, errors in ((sys.stdin, "surrogateescape"), (sys.stdout, "backslashreplace")):
        if isinstance(stream, io.TextIOWrapper):
            with suppress(OSError, ValueError):  # closed, or already read from
                stream.reconfigure(errors=errors)


def _about_a_name(error: Exception) -> str | None:
    """What is wrong with a file name, for errors caused by the name alone; else None."""
    if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
        return f"the file name {str(error.filename)[:100]}... is too long: choose a shorter one."
    return None


def _about_the_disk(error: BaseException) -> str | None:
    """What is wrong with the disk, for errors caused by the disk alone; else None."""
    if not isinstance(error, OSError) or not of_the_disk(error):
        return None
    try:
        sys.stdout.flush()
    except OSError:
        _leave_stdout()
        return FULL_STDOUT.format(error.strerror)
    return (
        f"cannot write {error.filename or 'a file'}: {error.strerror}. Free some space or use another place."
    )


def _remedy(words: Sequence[str]) -> str:
    """What to do after an interruption, for a command that keeps what it has done."""
    return ": give the same command to continue" if " ".join(words[:2]).startswith(RESUMED) else ""


def _leave_stdout() -> None:
    """Discard what is left in the buffer, so that Python does not complain about it at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _warn(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Print warnings meant for users in one line, without the source location; others as Python does."""
    if category is UserWarning:
        print(f"dear: note: {printable(str(message))}", file=sys.stderr)
    else:
        print(
            warnings.formatwarning(message, category, filename, lineno, line), end="", file=file or sys.stderr
        )


def _fail(words: Sequence[str], message: str, kind: str, code: int) -> int:
    if "--json" in words:
        from dear.cli.output import json_text

        try:
            print(json_text({"error": message, "kind": kind}), flush=True)
        except OSError:  # stdout may be on the full disk too
            _leave_stdout()
    line = message if code in (INTERRUPTED, TERMINATED) else f"error: {printable(message)}"
    with suppress(OSError):  # stderr may be on the full disk too
        print(f"dear: {line}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
