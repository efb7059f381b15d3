"""Predictions by a file of `dear export`, with onnxruntime and without torch: the same as `Predictor`'s on
the CPU, in a process that begins in a fraction of the time.
"""

import hashlib
import json
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dear.adapters.costs import decide_by_costs
from dear.adapters.operating import decide_by_thresholds, name_choices
from dear.adapters.results import EVIDENCE, ClassScore, Prediction, Unreadable, is_sum, name_evidence
from dear.backbone.preprocess import Preprocess
from dear.data.images.decode import decode_image, image_path
from dear.data.images.views import make_view
from dear.data.settings import DataSettings
from dear.data.sources.table import NONE
from dear.errors import BundleError, DataError, ExportError, SettingsError, first_line, installation
from dear.reading.files import expanded
from dear.reading.typed import PositiveInt, check_value

if TYPE_CHECKING:
    from numpy.typing import NDArray

SUFFIX = ".onnx"
BATCH = 32
ERRORS = 3
"""The level of onnxruntime's messages that are printed."""


def is_exported(bundle: Path | str) -> bool:
    """Whether a bundle is named by the file of its export."""
    return Path(bundle).suffix.lower() == SUFFIX and not Path(bundle).is_dir()


class OnnxPredictor:
    """A classifier that `dear export` wrote as ONNX.

    Attributes:
        classes: The classes that are built in.
        features: Names of the image features.
        method: The name of the bundle's method.
    """

    def __init__(self, file: Path | str) -> None:
        """Load a file. Raises BundleError for one that is missing or that `dear export` did not write, and
        ExportError without onnxruntime, and for a file without classes.
        """
        if find_spec("onnxruntime") is None:
            raise ExportError(f"onnxruntime is not installed: {installation('export')}.")
        self._file = expanded(file)
        if not self._file.is_file():
            raise BundleError(f"there is no file {self._file}: `dear export BUNDLE --out FILE` writes it.")
        os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # before onnxruntime is loaded
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = ERRORS
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # which takes cores
        if (threads := os.environ.get("OMP_NUM_THREADS", "")).isdigit():
            options.intra_op_num_threads = int(threads)
        try:
            self._session = onnxruntime.InferenceSession(
                str(self._file), options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # of many classes
            raise BundleError(f"{self._file} is not an ONNX file: {first_line(error)}") from error
        facts = self._session.get_modelmeta().custom_metadata_map
        again = "write it again with `dear export`"
        if not {"preprocess", "classes", "method"} <= facts.keys():
            raise BundleError(f"{self._file} was not written by `dear export`: {again}.")
        self.method = str(json.loads(facts["method"]))
        if json.loads(facts["classes"]) is None:
            raise ExportError(f"{self._file} has no classes, as always of {self.method}: give the bundle.")
        self._outputs = [output.name for output in self._session.get_outputs()]
        if EVIDENCE not in self._outputs:
            raise BundleError(f"{self._file} was written by an earlier version: {again}.")
        self.classes: tuple[str, ...] = tuple(json.loads(facts["classes"]))
        self.features: tuple[str, ...] = tuple(json.loads(facts["features"]))
        self._without_heads: list[str] = json.loads(facts["without_heads"])
        self._temperature = float(json.loads(facts["temperature"]))
        self._operating: dict[str, Any] | None = json.loads(facts["operating"])
        self._preprocess = Preprocess(**json.loads(facts["preprocess"]))

    @property
    def identity(self) -> str:
        """A hash of the file."""
        with self._file.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def predict(self, images: Path | str | Sequence[Path | str], top: int = 5) -> Any:
        """The best classes of an image file: a `Prediction`, or a list of them of several files. Raises
        DataError for an unreadable image.
        """
        is_one = isinstance(images, str | Path)
        predictions = [*self.predict_each([images] if isinstance(images, str | Path) else images, top)]
        for prediction in predictions:
            if isinstance(prediction, Unreadable):
                raise DataError(prediction.reason)
        return predictions[0] if is_one else predictions

    def predict_each(
        self,
        images: Iterable[Path | str],
        top: int = 5,
        classes: Sequence[str] | None = None,
        *,
        batch: int = BATCH,
        remember: bool = False,
    ) -> Iterator[Prediction | Unreadable]:
        """As `Predictor.predict_each`, of image files. Raises SettingsError for other ``classes`` and for
        ``remember``.
        """
        import numpy as np

        check_value("top", top, PositiveInt)
        if classes is not None or remember:
            raise SettingsError(f"{self._file} has its classes built in, and keeps no features.")
        remaining = iter(images)
        wanted = [name for name in self._outputs if name in ("logits", NONE, EVIDENCE)]
        threads = DataSettings().threads
        while part := [*islice(remaining, batch)]:
            if len(part) == 1:
                read = [self._read(part[0])]
            else:
                with ThreadPoolExecutor(min(threads, len(part))) as pool:
                    read = [*pool.map(self._read, part)]
            pixels = [each for each in read if not isinstance(each, Unreadable)]
            rows: Iterator[tuple[Any, ...]] = iter(())
            if pixels:
                answers = self._session.run(wanted, {"pixels": np.stack(pixels)})
                rows = self._rank(dict(zip(wanted, answers, strict=True)), top)
            for file, each in zip(part, read, strict=True):
                yield each if isinstance(each, Unreadable) else Prediction(str(file), *next(rows))

    def _read(self, file: Path | str) -> "NDArray[Any] | Unreadable":
        """The pixels of an image, as the model takes them."""
        import numpy as np

        try:
            view = make_view(decode_image(image_path(file)), self._preprocess)
        except DataError as error:
            return Unreadable(str(file), str(error))
        return np.asarray(view, dtype=np.float32).transpose(2, 0, 1) / np.float32(255)

    def _rank(self, answers: dict[str, Any], top: int) -> Iterator[tuple[Any, ...]]:
        """What a `Prediction` says of each image after its file."""
        import numpy as np

        logits, evidence = answers["logits"], answers[EVIDENCE]
        if not (np.isfinite(logits).all() and np.isfinite(evidence).all()):
            raise BundleError(f"{self._file} gives numbers that are not finite: export it again.")
        scaled = logits.astype(np.float64) / self._temperature
        shares = np.exp(scaled - scaled.max(axis=1, keepdims=True))
        shares /= shares.sum(axis=1, keepdims=True)
        refused = answers.get(NONE, np.zeros(len(logits), dtype=bool))
        choices = self._decide(shares, refused)
        parts = evidence if is_sum(logits, evidence.sum(axis=1)) else evidence[:, :0]
        for row, best in enumerate(np.argsort(-shares, axis=1, kind="stable")[:, :top].tolist()):
            scores = tuple(
                ClassScore(
                    self.classes[label],
                    float(shares[row, label]),
                    float(logits[row, label]),
                    name_evidence(parts[row, :, label].tolist(), self.features, self._without_heads),
                )
                for label in best
            )
            yield scores, bool(refused[row]), *choices[row]

    def _decide(self, shares: "NDArray[Any]", refused: "NDArray[Any]") -> list[tuple[str, str]]:
        """What the operating point of the file says of each image; both empty without one."""
        import numpy as np

        if self._operating is None:
            return [("", "")] * len(shares)
        if "costs" in self._operating:
            of_person = np.array(self._operating["person"], dtype=float)  # null is NaN, as is no person
            choices = decide_by_costs(shares, np.array(self._operating["costs"]), of_person)
        else:
            thresholds = [math.inf if each is None else each for each in self._operating["thresholds"]]
            choices = decide_by_thresholds(shares, thresholds)
        return name_choices(choices, refused.tolist(), self.classes)
