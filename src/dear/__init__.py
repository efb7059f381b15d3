"""dear: adapt CLIP by the roles of its attention heads. The public names, loaded when they are first used."""

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

try:
    __version__ = version("dear-vlm")
except PackageNotFoundError:  # run from a source tree that is not installed
    __version__ = "0+unknown"

_HOME = {
    "Bundle": "dear.adapters.bundle",
    "Clip": "dear.backbone.clip",
    "Dear": "dear.methods.dear.method",
    "DearSettings": "dear.methods.dear.settings",
    "Plan": "dear.evaluation.plan",
    "Predictor": "dear.adapters.predictor",
    "RoleTable": "dear.roles.table",
    "TrainOptions": "dear.training.settings",
    "TrainSettings": "dear.training.settings",
    "fit": "dear.adapters.fit",
    "load_clip": "dear.backbone.load",
    "load_dataset": "dear.data.loading",
    "role_table": "dear.roles.packaged",
    "run_all": "dear.evaluation.runs",
    "write_evaluation": "dear.adapters.diagnosis",
}
__all__ = ["__version__", *_HOME]

if TYPE_CHECKING:
    from dear.adapters.bundle import Bundle as Bundle
    from dear.adapters.diagnosis import write_evaluation as write_evaluation
    from dear.adapters.fit import fit as fit
    from dear.adapters.predictor import Predictor as Predictor
    from dear.backbone.clip import Clip as Clip
    from dear.backbone.load import load_clip as load_clip
    from dear.data.loading import load_dataset as load_dataset
    from dear.evaluation.plan import Plan as Plan
    from dear.evaluation.runs import run_all as run_all
    from dear.methods.dear.method import Dear as Dear
    from dear.methods.dear.settings import DearSettings as DearSettings
    from dear.roles.packaged import role_table as role_table
    from dear.roles.table import RoleTable as RoleTable
    from dear.training.settings import TrainOptions as TrainOptions
    from dear.training.settings import TrainSettings as TrainSettings


def __getattr__(name: str) -> Any:
    """Load a public name from its home: importing dear alone stays quick."""
    if name not in _HOME:
        raise AttributeError(f"module 'dear' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
