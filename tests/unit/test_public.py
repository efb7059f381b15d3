"""The public API is loaded when it is used."""

import subprocess
import sys


def test_importing_dear_loads_nothing_else() -> None:
    program = "import sys, dear; print([m for m in sys.modules if m.startswith(('torch', 'numpy', 'dear.'))])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['dear.threads']"
