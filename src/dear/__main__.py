"""`python -m dear` is the command `dear`."""

import sys

from dear.cli import start

sys.exit(start())
