"""The workers of `dear.cluster`: actors of Ray Data, each with a model."""

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

from dear.adapters.feature_reader import ImageReader
from dear.adapters.predictor import Predictor
from dear.backbone.device import use_threads
from dear.errors import DataError, SettingsError, installation
from dear.reading.typed import PositiveInt, check_value
from dear.text import list_names

PATH, BYTES = "path", "bytes"
"""Columns of a picture: where its file is, and what is in it."""


class Worker:
    """A model, and what it makes of a block of rows."""

    def __init__(self, bundle: Any, options: Mapping[str, Any], how: Mapping[str, Any], device: str) -> None:
        if device == "cpu":  # there is a worker for each core
            use_threads(1)
        self.how = how
        self.failure: Exception | None = None
        try:
            self.predictor = Predictor(bundle, device, **options)
            self.reader = ImageReader(self.predictor, remember=False)
        except Exception as error:  # raised by a call: Ray would start the worker again for ever
            self.failure = error

    def rows(self, table: Any) -> Mapping[str, Any]:
        """The new columns of a block."""
        raise NotImplementedError

    def __call__(self, table: Any) -> Any:
        if self.failure is not None:
            raise self.failure
        columns = self.rows(table) if len(table) else {}
        kept = table.drop_columns([name for name in (BYTES, *columns) if name in table.column_names])
        for name, values in columns.items():
            kept = kept.append_column(name, values)
        return kept


def on_workers(
    dataset: Any,
    worker: type[Worker],
    arguments: tuple[Any, ...],
    block: int | None,
    workers: int | None,
    gpus: float | None,
) -> Any:
    """A data set through workers of a kind: models in as many as there are GPUs or cores, unless ``workers``
    says how many, with so many ``gpus`` each. Raises SettingsError for more than the cluster has.
    """
    try:
        ray: Any = import_module("ray")
        pool = import_module("ray.data").ActorPoolStrategy
    except ModuleNotFoundError as error:
        raise SettingsError(f"dear.cluster needs Ray: {installation('cluster')}.") from error
    resources = ray.cluster_resources()
    available, cores = float(resources.get("GPU", 0)), int(resources.get("CPU", 1))
    gpus = min(available, 1.0) if gpus is None else gpus
    if gpus > available:
        raise SettingsError(f"{gpus:g} GPUs for a worker, but the cluster has {available:g}: lower --gpus.")
    check_value("workers", workers, PositiveInt | None)
    most = max(1, min(cores, int(available / gpus)) if gpus else cores)
    return dataset.map_batches(
        worker,
        fn_constructor_args=(*arguments, "cuda" if gpus else "cpu"),
        batch_size=block,
        batch_format="pyarrow",
        compute=pool(size=min(workers or most, most)),
        num_cpus=0,  # so that reading and writing always find a core
        num_gpus=gpus,
    )


def reasons_of(results: Sequence[Any]) -> Any:
    """The column of why pictures cannot be read; null for the others."""
    import pyarrow as pa

    return pa.array([getattr(result, "reason", None) for result in results], pa.string())


def pictures_of(table: Any) -> list[Any]:
    """The pictures of a block: bytes, else paths. Raises DataError for one without either."""
    for name in (BYTES, PATH):
        if name in table.column_names:
            return [value if value is not None else b"" for value in table.column(name).to_pylist()]
    raise DataError(
        f"the columns are {list_names(table.column_names, 20)}: a picture is in the column {BYTES} or {PATH}."
    )
