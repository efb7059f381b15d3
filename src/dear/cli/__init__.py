"""The `dear` command: one small file per command. `dear.cli.registry` explains how to add one."""

import signal

from dear.threads import end_process


def start() -> int:
    """What the installed script runs: `dear.cli.main`, whose import Ctrl-C ends as it ends a command."""
    signal.signal(signal.SIGINT, end_process)
    from dear.cli.main import main

    return main()
