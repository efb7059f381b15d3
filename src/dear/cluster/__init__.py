"""A bundle on many machines, by Ray Data: one model in each worker, pictures a block at a time.

`predict` and `encode` take and give a `ray.data.Dataset`; `dear.cluster.jobs` makes files of what they give.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dear.adapters.encoder import BATCH
from dear.adapters.results import Unreadable
from dear.adapters.saved_run import load_bundle
from dear.cluster.workers import Worker, on_workers, pictures_of, reasons_of

if TYPE_CHECKING:
    from dear.adapters.bundle import Bundle

__all__ = ["encode", "predict"]


def predict(
    dataset: Any,
    bundle: "Bundle | Path | str",
    *,
    top: int = 5,
    classes: Sequence[str] | None = None,
    batch: int = BATCH,
    block: int | None = 256,
    workers: int | None = None,
    gpus: float | None = None,
    **options: Any,
) -> Any:
    """The predictions of the pictures of a `ray.data.Dataset`, a row for each in place of its pictures.

    A row has the bytes of an image file in the column bytes, as `ray.data.read_binary_files` gives them, or
    its path or address in the column path, which a worker then opens. Its other columns stay. New are class,
    probability, logit and evidence (what each feature adds to the logit) of the best class, none_of_these,
    decision, decided_class, top (the best classes with their probabilities and logits), and reason: why the
    picture cannot be read, else null. Then the others are null.

    Args:
        top, classes: As in `Predictor.predict`.
        batch: Pictures that go through the model at a time.
        block: Rows that a worker gets at a time; None for the blocks of the data set.
        workers: How many workers. By default as many as the cluster has GPUs, or cores.
        gpus: GPUs of each worker, such as 0.5. By default one, if there are any.
        options: Of `Predictor`, such as fusion, for each worker.

    Raises SettingsError without Ray, and for more GPUs than the cluster has.
    """
    how = {"top": top, "classes": classes, "batch": batch}
    return on_workers(dataset, _Predict, (load_bundle(bundle), options, how), block, workers, gpus)


def encode(
    dataset: Any,
    bundle: "Bundle | Path | str",
    *,
    block: int | None = 256,
    workers: int | None = None,
    gpus: float | None = None,
    **options: Any,
) -> Any:
    """As `predict`, with the features of each picture: the new columns are features (lists of float16, one
    for each feature of the bundle, of length 1 before rounding) and reason.
    """
    arguments = (load_bundle(bundle), options, {"batch": BATCH})
    return on_workers(dataset, _Encode, arguments, block, workers, gpus)


class _Predict(Worker):
    """A worker that predicts."""

    def rows(self, table: Any) -> Mapping[str, Any]:
        import pyarrow as pa

        results = [*self.predictor.predict_each(pictures_of(table), **self.how)]
        found = [None if isinstance(result, Unreadable) else result for result in results]
        best = [result and result.best for result in found]
        score = pa.struct({"class": pa.string(), "probability": pa.float64(), "logit": pa.float64()})
        tops = [result and [_score(each) for each in result.top] for result in found]
        evidence = [each and [*each.evidence.items()] for each in best]
        return {
            "class": pa.array([each and each.name for each in best], pa.string()),
            "probability": pa.array([each and each.probability for each in best], pa.float64()),
            "logit": pa.array([each and each.logit for each in best], pa.float64()),
            "evidence": pa.array(evidence, pa.map_(pa.string(), pa.float64())),
            "none_of_these": pa.array([result and result.none_of_these for result in found], pa.bool_()),
            "decision": pa.array([result and result.decision for result in found], pa.string()),
            "decided_class": pa.array([result and result.decided_class for result in found], pa.string()),
            "top": pa.array(tops, pa.list_(score)),
            "reason": reasons_of(results),
        }


class _Encode(Worker):
    """A worker that encodes."""

    def rows(self, table: Any) -> Mapping[str, Any]:
        import pyarrow as pa

        rows, results = list[Any](), list[Any]()
        for part in self.reader.read(pictures_of(table), self.how["batch"]):
            readable = [image for image in part if not isinstance(image.pixels, Unreadable)]
            features = iter(self.reader.features(readable).cpu() if readable else ())
            for image in part:
                results.append(image.pixels)
                one = None if isinstance(image.pixels, Unreadable) else next(features)
                count = len(self.predictor.features)
                rows.append(None if one is None else one[:count].half().numpy().tolist())
        lists = pa.list_(pa.list_(pa.float16()))
        return {"features": pa.array(rows, lists), "reason": reasons_of(results)}


def _score(each: Any) -> dict[str, Any]:
    return {"class": each.name, "probability": each.probability, "logit": each.logit}
