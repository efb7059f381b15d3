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
    "BundleEncoder": "dear.adapters.index_encoder",
    "Clip": "dear.backbone.clip",
    "DataSettings": "dear.data.settings",
    "Dataset": "dear.data.dataset",
    "Dear": "dear.methods.dear.method",
    "DearClassifier": "dear.adapters.classifier",
    "DearError": "dear.errors",
    "DearSettings": "dear.methods.dear",
    "Experiment": "dear.evaluation.experiment",
    "Index": "dear.retrieval.index",
    "Machines": "dear.evaluation.experiment",
    "Method": "dear.methods.base",
    "MethodSettings": "dear.methods.declaration",
    "Plan": "dear.evaluation.plan",
    "Predictor": "dear.adapters.predictor",
    "RoleSettings": "dear.roles.settings",
    "RoleTable": "dear.roles.table",
    "Subset": "dear.data.fewshot",
    "TrainOptions": "dear.training.settings",
    "TrainSettings": "dear.training.settings",
    "build_index": "dear.retrieval.build",
    "contact_sheet": "dear.retrieval.sheet",
    "discover": "dear.roles.discover",
    "encoder_for": "dear.retrieval.encoder",
    "evaluate_bundle": "dear.adapters.scoring",
    "fit": "dear.adapters.fit",
    "launch": "dear.evaluation.launch.dispatch",
    "load_clip": "dear.backbone.load",
    "load_dataset": "dear.data.loading",
    "load_pool": "dear.roles.phrases",
    "load_recipe": "dear.evaluation.recipe",
    "open_index": "dear.retrieval.index",
    "protocol_class": "dear.evaluation.protocols",
    "read_record": "dear.evaluation.records",
    "register": "dear.methods.registry",
    "role_table": "dear.roles.packaged",
    "run_all": "dear.evaluation.runs",
    "write_evaluation": "dear.adapters.evaluation_page",
    "write_predictions": "dear.adapters.results",
}
__all__ = ["__version__", *_HOME]

if TYPE_CHECKING:
    from dear.adapters.bundle import Bundle as Bundle
    from dear.adapters.classifier import DearClassifier as DearClassifier
    from dear.adapters.evaluation_page import write_evaluation as write_evaluation
    from dear.adapters.fit import fit as fit
    from dear.adapters.index_encoder import BundleEncoder as BundleEncoder
    from dear.adapters.predictor import Predictor as Predictor
    from dear.adapters.results import write_predictions as write_predictions
    from dear.adapters.scoring import evaluate_bundle as evaluate_bundle
    from dear.backbone.clip import Clip as Clip
    from dear.backbone.load import load_clip as load_clip
    from dear.data.dataset import Dataset as Dataset
    from dear.data.fewshot import Subset as Subset
    from dear.data.loading import load_dataset as load_dataset
    from dear.data.settings import DataSettings as DataSettings
    from dear.errors import DearError as DearError
    from dear.evaluation.experiment import Experiment as Experiment
    from dear.evaluation.experiment import Machines as Machines
    from dear.evaluation.launch.dispatch import launch as launch
    from dear.evaluation.plan import Plan as Plan
    from dear.evaluation.protocols import protocol_class as protocol_class
    from dear.evaluation.recipe import load_recipe as load_recipe
    from dear.evaluation.records import read_record as read_record
    from dear.evaluation.runs import run_all as run_all
    from dear.methods.base import Method as Method
    from dear.methods.dear import DearSettings as DearSettings
    from dear.methods.dear.method import Dear as Dear
    from dear.methods.declaration import MethodSettings as MethodSettings
    from dear.methods.registry import register as register
    from dear.retrieval.build import build_index as build_index
    from dear.retrieval.encoder import encoder_for as encoder_for
    from dear.retrieval.index import Index as Index
    from dear.retrieval.index import open_index as open_index
    from dear.retrieval.sheet import contact_sheet as contact_sheet
    from dear.roles.discover import discover as discover
    from dear.roles.packaged import role_table as role_table
    from dear.roles.phrases import load_pool as load_pool
    from dear.roles.settings import RoleSettings as RoleSettings
    from dear.roles.table import RoleTable as RoleTable
    from dear.training.settings import TrainOptions as TrainOptions
    from dear.training.settings import TrainSettings as TrainSettings


def __getattr__(name: str) -> Any:
    """Load a public name from its home: importing dear alone stays quick."""
    if name not in _HOME:
        raise AttributeError(f"module 'dear' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
