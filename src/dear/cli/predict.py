"""`dear predict`: classify images, with probabilities and evidence."""

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from dear.adapters.results import (
    ClassScore,
    Prediction,
    PredictionsFile,
    Unreadable,
    check_table,
    keep_results,
    write_predictions,
)
from dear.adapters.wording import explain_features
from dear.cli.options import BundleOptions, ClusterOptions, Steering
from dear.cli.output import PrintableConsole
from dear.cli.parsing import Flat
from dear.data.images.video import file_of, is_video
from dear.data.settings import DataSettings, Frames
from dear.errors import DataError, SettingsError
from dear.reading.files import expanded, read_lines, whole_path
from dear.reading.remote import as_path, is_address
from dear.reading.typed import PositiveInt, check_value
from dear.text import fingerprint, plural, printable

if TYPE_CHECKING:
    from dear.adapters.onnx_predictor import OnnxPredictor
    from dear.adapters.predictor import Predictor

STDIN = "-"
WIDTH = 80
NAME = 48  # columns for a class's name, beyond which the numbers beside it move
EXPLANATION = """Evidence is what each feature of the image adds to a class's logit: + for the
class, - against it; the parts sum to the logit. Probabilities are the softmax
of the logits of all classes."""


@dataclass(frozen=True)
class Predicted:
    """Predictions in the order of the images, the unreadable images, what the parts of evidence say and, if
    the bundle is steered, the weights of its features: "steered" and its "own".
    """

    predictions: list[Prediction]
    unreadable: list[Unreadable]
    features: dict[str, str]
    weights: dict[str, dict[str, float] | None] = field(default_factory=dict)

    @property
    def partly(self) -> bool:
        """True if some of the work could not be done, which the exit code reports."""
        return bool(self.unreadable)


def command(
    bundle: Annotated[
        str, Parameter(help="Folder of the bundle, OWNER/NAME on the hub, or an ONNX file of `dear export`.")
    ],
    images: list[str],
    *,
    out: Path | None = None,
    top: int = 5,
    classes: list[str] | None = None,
    classes_file: Path | None = None,
    add_classes: list[str] | None = None,
    steering: Flat[Steering] = Steering(),
    options: Flat[BundleOptions] = BundleOptions(),
    batch: int = 32,
    refuse: float | None = None,
    remember: bool = False,
    many: Flat[ClusterOptions] = ClusterOptions(),
    frames: int | None = None,
) -> Predicted | PredictionsFile:
    """Classify images: the best classes, with their probabilities and evidence.

    Evidence is what a feature of the image adds to the logit of a class (for DeAR alpha_k s_k). Positive
    evidence speaks for the class and negative evidence against it. The evidence of all features sums to the
    logit. In the evidence of DeAR, "rest" is the sum over the attributes to which the role table assigns no
    attention head.

    An image that cannot be read is reported and skipped, and the exit code is 1. For many images give --out:
    an interrupted command then continues where it stopped, if it is given again. With --cluster, --out is a
    folder of Parquet files.

    A classifier as ONNX answers the same on the CPU, and begins sooner, since it needs no torch.

    Args:
        images: Image files, folders of them, zips, tars and Parquet files, tables with a column of paths
            (CSV or JSONL), or - for a list of paths on stdin, one per line. A path may be an address, such
            as s3://bucket/photos.
        out: File to write to instead of printing. A .csv file has one row for each image: file, class,
            probability, then class_2, probability_2 and so on. A .jsonl file has the evidence too.
        top: How many classes to report for each image.
        classes: Classes to choose from, in place of the bundle's: names, separated by commas.
        classes_file: Text file of the classes to choose from, one name per line.
        add_classes: Classes to add to the bundle's: names, separated by commas.
        batch: Images that go through the model at a time.
        refuse: Share of the images of the bundle's classes that may be called none of these. By default the
            share of the fit. With 0 no image is.
        remember: Keep the features of images in the cache folder (up to 2 GiB). Images of the same content
            are then not encoded again with this bundle.
        frames: Frames to read of each video, evenly spaced. Each is an image of its own, VIDEO#t=SECONDS.
            This needs the extra `video`.
    """
    from dear.adapters.bundle_config import check_bundle
    from dear.adapters.onnx_predictor import OnnxPredictor, is_exported
    from dear.data.images.decode import read_image

    if out is not None and many.cluster is None:
        check_table(out)
    if many.cluster is not None and (out is None or remember):
        raise SettingsError("--cluster: give a folder with --out, and omit --remember.")
    check_value("batch", batch, PositiveInt)
    if classes and classes_file:
        raise SettingsError("--classes and --classes-file: give only one of them.")
    names = classes
    if classes_file:
        names = [line.strip() for line in read_lines(classes_file) if line.strip()]
    steered = steering.arguments()
    check_value("frames", frames, Frames | None)
    paths = [*_paths(images, frames)]
    if not paths:
        raise DataError("there is no image to predict: the list on stdin is empty.")
    if is_exported(bundle):
        fixed = {
            "classes": names, "add-classes": add_classes, "refuse": refuse, "remember": remember or None,
            "fusion": steering.fusion, "decoupled": steering.decoupled or None,
            "pretrained": options.pretrained, "method": options.method,
        }  # fmt: skip
        if given := [name for name, value in fixed.items() if value is not None]:
            raise SettingsError(f"--{given[0]} is for bundles: what {bundle} predicts is built in.")
    else:
        check_bundle(bundle)
    if len(paths) == 1:
        read_image(as_path(paths[0]))
    from dear.cli.progress import StepProgress

    cluster = many.find(options.device)
    if cluster is not None and out is not None:
        if is_exported(bundle):
            raise SettingsError("--cluster takes a bundle, not a classifier as ONNX.")
        from dear.adapters.saved_run import load_bundle
        from dear.cluster.jobs import predict_files

        loaded = load_bundle(bundle)
        if add_classes:
            names = [*(names or loaded.classes), *add_classes]
        how = {"top": top, "classes": names, "batch": batch, "refuse": refuse, **steered}
        how |= {} if options.pretrained is None else {"pretrained": options.pretrained}
        whole = [whole_path(as_path(path)) for path in paths]
        stamps = [*map(_stamp, whole)]
        with StepProgress() as progress:
            return predict_files(whole, loaded, out, cluster, stamps=stamps, progress=progress, **how)
    predictor: OnnxPredictor | Predictor
    if is_exported(bundle):  # without torch
        predictor = OnnxPredictor(bundle)
    else:
        predictor = options.load(bundle, refuse=refuse, **steered)
    if add_classes:
        names = [*(names or predictor.classes), *add_classes]
    with StepProgress() as progress:

        def predict(done: int = 0) -> Iterator[Prediction | Unreadable]:
            if done:
                progress.note(f"dear: going on after {done:,} of {plural(len(paths), 'image')}")
            results = predictor.predict_each(paths[done:], top, names, batch=batch, remember=remember)
            for number, result in enumerate(results, start=done + 1):
                if isinstance(result, Unreadable) and len(paths) > 1:
                    progress.note(f"dear: {result.reason}")
                if len(paths) > batch:
                    progress("predicting", number, len(paths))
                yield result

        if out is not None:
            from dear.writing import locked

            facts = [_identify(predictor), top, names, refuse, *steered.values()]
            key = fingerprint(json.dumps(facts), *map(_stamp, paths))
            with locked(expanded(out), DataSettings().cache_folder()):
                return write_predictions(out, keep_results(out, key, predict))
        done = [*predict()]
    predictions = [result for result in done if isinstance(result, Prediction)]
    unreadable = [result for result in done if isinstance(result, Unreadable)]
    if not predictions:
        several = f"none of {len(paths)} images can be read; the first: " if len(paths) > 1 else ""
        raise DataError(several + unreadable[0].reason)
    evidence = [*predictions[0].best.evidence]
    if isinstance(predictor, OnnxPredictor):
        return Predicted(predictions, unreadable, explain_features(predictor.method, evidence))
    features = explain_features(predictor.bundle.method, evidence)
    own = predictor.own_vocabulary.unchanged
    weights = {} if own is None else {"steered": predictor.own_vocabulary.weights(), "own": own.weights()}
    return Predicted(predictions, unreadable, features, weights)


def _identify(predictor: "OnnxPredictor | Predictor") -> str:
    """What the predictions depend on, in a hash."""
    from dear.adapters.onnx_predictor import OnnxPredictor

    if isinstance(predictor, OnnxPredictor):
        return predictor.identity
    from dear.adapters.identity import identify_bundle

    return identify_bundle(predictor.bundle)


def render(result: Predicted | PredictionsFile, console: PrintableConsole) -> None:
    """Print the predictions, or where they are."""
    if isinstance(result, PredictionsFile):
        unread = f"; {len(result.unreadable)} could not be read" if result.unreadable else ""
        console.say(f"{plural(result.images, 'image')} in {result.out}{unread}")
        return
    bad, total = len(result.unreadable), len(result.unreadable) + len(result.predictions)
    for prediction in result.predictions:
        console.say(*_list_lines(prediction))
    if len(result.features) > 1:
        console.say(*EXPLANATION.splitlines())
        for name, words in result.features.items():
            console.say(*wrap(f"{name}: {words}", WIDTH, initial_indent="  ", subsequent_indent="    "))
    for whose, weights in result.weights.items():
        if weights is not None:
            parts = ", ".join(f"{name} {weight:.3f}" for name, weight in weights.items())
            console.say(*wrap(f"{whose} weights: {parts}", WIDTH, subsequent_indent="  "))
    if bad:
        console.say(f"{bad} of {total} images could not be read")


def _stamp(path: str) -> str:
    """The path of an image with its size and time, which show whether it is another by now; of one at an
    address that would be a request each.
    """
    if is_address(path):
        return path
    try:
        status = file_of(Path(path)).stat()
    except OSError:  # is reported when it is read
        return path
    return f"{path} {status.st_size} {status.st_mtime_ns}"


def _list_lines(prediction: Prediction) -> list[str]:
    """An image and its best classes, in lines of at most 80 columns if names are short enough."""
    shown = (*prediction.top, *prediction.unchanged)
    width = max(len("class"), *(min(len(candidate.name), NAME) for candidate in shown))
    none = ": none of these" if prediction.none_of_these else ""
    if prediction.decision:
        none += f": {' '.join([prediction.decision, printable(prediction.decided_class)]).strip()}"
    lines = [(prediction.image or "") + none, f"     {'class':{width}}  probability   logit"]
    lines += _rank_lines(prediction.top, width)
    if prediction.unchanged:
        lines += ["     by the bundle's own weights:", *_rank_lines(prediction.unchanged, width)]
    return [*lines, ""]


def _rank_lines(candidates: Sequence[ClassScore], width: int) -> list[str]:
    lines = list[str]()
    for rank, candidate in enumerate(candidates, start=1):
        probability = f"{100 * candidate.probability:9.1f} %"
        lines.append(f"{rank:3}  {printable(candidate.name):{width}}  {probability}  {candidate.logit:6.2f}")
        if len(candidate.evidence) > 1:
            parts = ", ".join(f"{name}\xa0{value:+z.2f}" for name, value in candidate.evidence.items())
            wrapped = wrap(f"evidence: {parts}", WIDTH, initial_indent=" " * 7, subsequent_indent=" " * 7)
            lines += [line.replace("\xa0", " ") for line in wrapped]
    return lines


def _paths(images: Sequence[str], frames: int | None) -> Iterator[str]:
    """The image files that the arguments name, with folders searched, archives unpacked and tables read.
    Raises DataError for a folder or a table without images, and for an argument that is empty.
    """
    from dear.data.images.decode import image_path
    from dear.data.names import require_folder
    from dear.data.sources.folder import image_files
    from dear.data.sources.shards import find_images, is_collection

    for word in images:
        if not word:
            raise DataError("the path of an image is empty: name a file, a folder, or . for this folder.")
        if word == STDIN:
            lines = (line.removeprefix("\ufeff").rstrip("\r\n") for line in sys.stdin)
            for line in filter(str.strip, lines):
                yield from map(str, image_files(as_path(line), frames)) if is_video(line) else [line]
        elif is_collection(word) or is_video(word):
            yield from map(str, find_images(word, DataSettings(frames=frames)))
        else:  # an invalid name, for example one that is too long, is reported when the file is read
            path = image_path(word)
            is_alone = len(images) == 1  # of several the others are done
            if is_alone and not path.suffix and not is_address(path):
                require_folder(path)
            yield str(path)
