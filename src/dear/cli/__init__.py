"""The `dear` command: one small file a command. How to add one is told in `dear.cli.registry`."""
