# The names of `dear`, each once, which docs/api.md explains. All else is imported from its module.

from .adapters.attention import attention_maps as attention_maps
from .adapters.bundle import Bundle as Bundle
from .adapters.classifier import DearClassifier as DearClassifier
from .adapters.compare import compare as compare
from .adapters.drift import detect_drift as detect_drift
from .adapters.evaluation import evaluate as evaluate
from .adapters.fit import fit as fit
from .adapters.labels import apply_labels as apply_labels
from .adapters.onnx_predictor import OnnxPredictor as OnnxPredictor
from .adapters.predictor import Predictor as Predictor
from .adapters.refit import refit as refit
from .adapters.review import find_label_issues as find_label_issues
from .adapters.saved_run import SavedRun as SavedRun
from .adapters.saved_run import load_bundle as load_bundle
from .adapters.saved_run import load_run as load_run
from .adapters.scoring import evaluate_bundle as evaluate_bundle
from .backbone.loading.load import load_clip as load_clip
from .data.loading import load_dataset as load_dataset
from .data.settings import DataSettings as DataSettings
from .errors import DearError as DearError
from .evaluation.experiment import Experiment as Experiment
from .evaluation.launch import launch as launch
from .evaluation.resolve import MethodSetup as MethodSetup
from .methods.base import Method as Method
from .methods.declaration import Declaration as Declaration
from .methods.declaration import MethodSettings as MethodSettings
from .methods.registry import build_method as build_method
from .methods.registry import register as register
from .retrieval.build import build_index as build_index
from .retrieval.index import open_index as open_index
from .roles.discover import discover as discover
from .roles.table import RoleTable as RoleTable
from .roles.table import role_table as role_table

__version__: str
