"""The `dear` command: one small file per command. `dear.cli.registry` explains how to add one."""

import sys


def start() -> int:
    """What the installed script runs: `dear.cli.main`, whose import Ctrl-C ends as it ends a command."""
    try:
        from dear.cli.main import main

        return main()
    except KeyboardInterrupt:
        if "--json" in sys.argv:
            print('{"error": "interrupted", "kind": "Interrupted"}')
        print("dear: interrupted", file=sys.stderr)
        return 130
