"""The public API is loaded when it is used."""

import subprocess
import sys


def test_importing_dear_loads_nothing_else() -> None:
    program = "import sys, dear; print([m for m in sys.modules if m.startswith(('torch', 'numpy', 'dear.'))])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_only_training_loads_what_training_needs() -> None:
    """Lightning takes seconds to import; reports, evaluation, predictions and indexes do without it."""
    modules = ["report.folder", "adapters.evaluation_page", "adapters.predictor", "retrieval.build"]
    imports = "".join(f"import dear.{module}; " for module in modules)
    program = f"{imports}import sys; print('lightning_fabric' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
