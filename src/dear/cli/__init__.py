"""The `dear` command: one small file per command. `dear.cli.registry` explains how to add one."""
