"""Export an adapted image tower with its classes built in, as ONNX."""

import copy
import json
import logging
import math
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from dear import __version__
from dear.adapters.bundle import Bundle
from dear.adapters.onnx_predictor import SUFFIX
from dear.adapters.predictor import Predictor
from dear.adapters.results import EVIDENCE, Exported
from dear.adapters.vocabulary import Vocabulary
from dear.backbone.text import TextTower
from dear.backbone.vision import VisionTower
from dear.curation.outliers import Refusal
from dear.data.sources.table import NONE
from dear.errors import ExportError, OutputError, first_line, installation
from dear.methods.base import Method
from dear.methods.optional import image_block
from dear.training.seeding import generator
from dear.writing import output_file

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # before onnxruntime: it reports with the path of Python
TOLERANCE, LARGE = 1e-3, 100.0
MAX_ONNX_BYTES = 2**31 - 2**24
"""Maximum bytes in one ONNX file, leaving room for its graph: protocol buffers are limited to 2 GiB."""
RANDOM_BATCHES = (1, 5)
BATCH = 32

Run = Callable[[Tensor], list[Tensor]]
"""An exported model: pixels to its outputs."""
Part = TypeVar("Part", bound=nn.Module)


class ExportedModel(nn.Module):
    """The adapted image tower with the text features of its classes: pixels in [0, 1] to logits and
    probabilities, whether an image is of none of the classes, unit features, and evidence. Without the
    classes of a method whose text features depend on the image, to features alone. The text tower is not
    included.
    """

    def __init__(self, vocabulary: Vocabulary, temperature: float, refusal: Refusal | None) -> None:
        super().__init__()
        method = vocabulary.method
        parts = {name: part for name, part in method.named_children() if not isinstance(part, TextTower)}
        self.method = _with_parts(method, parts)
        # A method does not own its backbone: here its image tower is a part, to be exported with it. What is
        # of none of the classes is told by the backbone's own layers, also by those that the method replaces.
        image = method.clip.image if refusal is not None else _used_layers(method)
        self.method.clip = _with_parts(method.clip, {"image": image})
        self.refusal, self.decoupled, self.temperature = refusal, vocabulary.decoupled, temperature
        self.register_buffer("text", vocabulary.text.detach().clone())

    @property
    def outputs(self) -> list[str]:
        """The names of the outputs."""
        if self.method.declaration.text_depends_on_image:
            return ["features"]
        return [
            "logits",
            "probabilities",
            *([NONE] if self.refusal is not None else []),
            "features",
            EVIDENCE,
        ]

    def forward(self, pixels: Float[Tensor, "batch 3 height width"]) -> tuple[Tensor, ...]:
        readout = self.method.read_out(self.method.image_trunk(pixels))
        image = self.method.image_features(readout)
        features = image.transpose(0, 1)
        if self.method.declaration.text_depends_on_image:
            return (features,)
        logits = self.method.logits(image, self.text, decoupled=self.decoupled)  # type: ignore[arg-type]
        refused = []
        if self.refusal is not None:
            refused = [self.refusal(self.method.frozen_image(readout), logits.argmax(dim=1))]
        evidence = self.method.evidence(image, self.text, decoupled=self.decoupled)  # type: ignore[arg-type]
        shares = (logits / self.temperature).softmax(dim=1)
        return logits, shares, *refused, features, evidence.transpose(0, 1)


def _with_parts(module: Part, parts: dict[str, nn.Module]) -> Part:
    """A copy of a module that shares its tensors and has these submodules instead."""
    twin = copy.copy(module)
    twin._modules = {**parts}
    return twin


def _used_layers(method: Method) -> VisionTower:
    """The backbone's image tower without the layers that the method replaces by layers of its own."""
    tower = method.clip.image
    if tower.access == "features":
        return tower
    blocks = [tower.block(layer) for layer in range(1, tower.depth + 1)]
    used = [
        block if image_block(method, layer) is block else nn.Identity()
        for layer, block in enumerate(blocks, start=1)
    ]
    return _with_parts(tower, dict(tower.named_children()) | {"blocks": nn.ModuleList(used)})


@torch.no_grad()
def export(
    predictor: Predictor,
    out: Path,
    *,
    classes: Sequence[str] | None = None,
    images: Iterable[Path] = (),
) -> Exported:
    """Write an adapted model for other runtimes, after checking it against torch; the batch size is dynamic.

    The input is "pixels": float32 in [0, 1], as returned by `Predictor.preprocess`. The outputs are "logits"
    and "probabilities" (batch, class), unless the bundle refuses nothing "none_of_these" (batch), true for an
    image of none of the classes, "features" (batch, feature, embed), and "evidence" (batch, feature, class),
    whose sums over features are the logits; features alone where text features depend on the image.
    ``classes`` replace the bundle's. The export is checked on random pixels and on ``images``. Raises
    ExportError if it cannot be exported or differs by more than 0.001, or 0.00001 of an output's largest
    value where that is more; OutputError, DataError.
    """
    if not out.name or out.is_dir():
        raise OutputError(f"{out} is a folder: name a file in it with --out, such as {out / 'model.onnx'}.")
    if out.suffix.lower() != SUFFIX:  # by which commands know it
        raise OutputError(f"--out {out}: give a file ending in {SUFFIX}.")
    if predictor.clip.image.projection.device.type != "cpu":
        raise ExportError("export runs on the CPU: load the predictor with the device cpu.")
    vocabulary = predictor.vocabulary(classes)
    has_classes = not vocabulary.method.declaration.text_depends_on_image
    if classes is not None and not has_classes:
        raise ExportError(
            f"{vocabulary.method.name} computes text features for each image, so classes cannot be built in: "
            "omit them to export the features."
        )
    refusal = predictor.refusal(vocabulary.classes) if has_classes else None
    model = ExportedModel(vocabulary, predictor.bundle.temperature, refusal).eval()
    metadata = _metadata(predictor, vocabulary if has_classes else None, model.outputs)
    content = _to_onnx(model, predictor.clip.image_size, metadata)
    run, checked, difference, same = _load_onnx(content), 0, 0.0, 0
    for pixels in _batches(predictor, [*images]):
        expected, exported = model(pixels), run(pixels)
        checked += len(pixels)
        for of_torch, of_file in zip(expected, exported, strict=True):
            if of_torch.dtype == torch.bool:  # a threshold may lie between two roundings
                continue
            gap = float((of_torch - of_file).abs().max())
            allowed = TOLERANCE * max(1.0, float(of_torch.abs().max()) / LARGE)
            if not gap <= allowed:  # NaN is not
                raise ExportError(
                    f"the exported model differs from torch's by {gap:.1e} (allowed: {allowed:.1g}) on "
                    f"{checked} images: nothing was written."
                )
            difference = max(difference, gap)
        best, other = (outputs[0].flatten(1).argmax(dim=1) for outputs in (expected, exported))
        same += int((best == other).sum())
    with output_file(out) as file:
        file.write(content)
    classes_in, same_best = (len(vocabulary.classes), same) if has_classes else (None, None)
    names = tuple(model.outputs)
    return Exported(out, names, classes_in, len(content), checked, difference, same_best)


def _metadata(predictor: Predictor, vocabulary: Vocabulary | None, outputs: Sequence[str]) -> dict[str, Any]:
    bundle = predictor.bundle
    return {
        "dear": __version__,
        "method": bundle.method,
        "weights": asdict(bundle.weights),
        "input": f"pixels: float32, batch x 3 x {predictor.clip.image_size} x {predictor.clip.image_size}, "
        "RGB in [0, 1], made as `preprocess` says; the normalization is in the model",
        "preprocess": asdict(predictor.clip.preprocess),
        "outputs": [*outputs],
        "features": [*predictor.features],
        "without_heads": [*predictor.without_heads],
        "classes": None if vocabulary is None else [*vocabulary.classes],
        "temperature": bundle.temperature,
        "operating": None if vocabulary is None else _describe_point(bundle, vocabulary.classes),
    }


def _describe_point(bundle: Bundle, classes: Sequence[str]) -> dict[str, Any] | None:
    """What a program needs to decide as the bundle's operating point: for each class the least probability,
    null for one that is never decided; or the costs of each class (rows) by prediction and of a person. None
    without one, and for other classes than the bundle's.
    """
    point = bundle.training.operating
    if point is None or tuple(classes) != bundle.classes:
        return None
    if point.costs is not None:
        asked = point.costs.of_person(classes).tolist()
        of_person = [None if cost == math.inf else cost for cost in asked]
        return {"costs": point.costs.matrix(classes).tolist(), "person": of_person}
    thresholds = map(point.threshold_of, classes)
    return {
        "precision": point.precision,
        "thresholds": [None if value == math.inf else value for value in thresholds],
    }


def _trace(model: nn.Module, size: int) -> torch.export.ExportedProgram:
    pixels = torch.rand(2, 3, size, size, generator=generator(0, "export"))
    batch = torch.export.Dim("batch", min=1)
    try:
        program = torch.export.export(model, (pixels,), dynamic_shapes={"pixels": {0: batch}})
    except Exception as error:  # the exporter raises many classes
        raise ExportError(f"torch.export cannot export this model: {first_line(error)}") from error
    for node in program.graph.nodes:  # which have the paths of the code on this machine
        node.meta.pop("stack_trace", None)
    return program


def _to_onnx(model: nn.Module, size: int, metadata: dict[str, Any]) -> bytes:
    for name in ("onnx", "onnxruntime", "onnxscript"):
        if find_spec(name) is None:
            raise ExportError(f"{name} is not installed: {installation('export')}.")
    size_in_bytes = sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers()))
    if size_in_bytes > MAX_ONNX_BYTES:
        raise ExportError(
            f"the image tower has {size_in_bytes / 2**30:.1f} GiB, but an ONNX file is limited to 2: fit a "
            "smaller backbone."
        )
    options: dict[str, Any] = {"input_names": ["pixels"], "output_names": metadata["outputs"]}
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)  # the exporter's: what it writes is checked against torch afterwards
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program: Any = torch.onnx.export(_trace(model, size), dynamo=True, verbose=False, **options)
        program.model.metadata_props.update({name: json.dumps(value) for name, value in metadata.items()})
        content: bytes = program.model_proto.SerializeToString()
    except ExportError:
        raise
    except Exception as error:
        raise ExportError(f"torch.onnx cannot export this model: {first_line(error)}") from error
    finally:
        logging.disable(before)
    return content


def _load_onnx(content: bytes) -> Run:
    import onnxruntime

    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    return lambda pixels: [*map(torch.from_numpy, session.run(None, {"pixels": pixels.numpy()}))]


def _batches(predictor: Predictor, paths: Sequence[Path]) -> Iterator[Float[Tensor, "batch 3 size size"]]:
    """Random pixels, and images."""
    size, stream = predictor.clip.image_size, generator(1, "export")
    for count in RANDOM_BATCHES:
        yield torch.rand(count, 3, size, size, generator=stream)
    for start in range(0, len(paths), BATCH):
        yield torch.stack([predictor.preprocess(path) for path in paths[start : start + BATCH]])
