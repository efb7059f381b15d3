"""What `dear predict`, `dear eval` and `dear index build` make on a cluster. Predictions and an index are
files on this machine, a shard at a time, so that a command that was interrupted goes on after the shards that
it has.
"""

import json
import logging
import re
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from dear.adapters.bundle import Bundle
from dear.adapters.encoder import BATCH
from dear.adapters.identity import identify_bundle
from dear.adapters.index_encoder import BundleEncoder
from dear.adapters.results import PredictionsFile, Unreadable
from dear.cluster import predict
from dear.cluster.workers import Worker, on_workers, pictures_of, reasons_of
from dear.data.dataset import Images
from dear.data.fewshot import leave_subsets
from dear.data.images.photos import PhotoImages, in_parallel
from dear.data.settings import DataSettings
from dear.errors import DataError, DearError, OutputError, SettingsError
from dear.evaluation.predictions import Encode
from dear.evaluation.workers import connect_ray
from dear.progress import Progress, silent
from dear.reading.files import expanded, whole_path
from dear.reading.plain import read_json
from dear.reading.remote import within
from dear.retrieval.build import Entry, Files, Load, Stamps, read_entry
from dear.text import fingerprint
from dear.writing import PART, locked, make_folder, output_file

FEWEST, MOST, FILES = 64, 2048, 256
"""Images of a file of predictions at least and at most, and how many files there are between these."""
WORKER_ERROR = re.compile(r"^\s*dear\.\w[\w.]*Error: (.+)$", re.MULTILINE)
JOB = "_job.json"  # readers of Parquet folders pass over such names


@dataclass(frozen=True)
class Cluster:
    """Where pictures go through the model.

    Attributes:
        address: "local" (a temporary cluster on this machine), "auto" (the running one) or ray://HOST:PORT.
        workers, gpus: As in `dear.cluster.predict`.
    """

    address: str
    workers: int | None = None
    gpus: float | None = None

    def share_among(self, blocks: int) -> dict[str, Any]:
        """Arguments of `dear.cluster.predict`: of no more workers than there are blocks."""
        return {"workers": blocks if self.workers is None else min(self.workers, blocks), "gpus": self.gpus}

    @contextmanager
    def connected(self) -> Iterator[Any]:
        """Ray, until the block ends; blocks of data sets keep their order. Raises what a worker raises."""
        ray = connect_ray(self.address)
        try:
            context = ray.data.DataContext.get_current()
            logging.getLogger("ray.data").setLevel(logging.CRITICAL)  # its import sets another
            context.enable_progress_bars = context.print_on_execution_start = False
            context.execution_options.preserve_order = True
            yield ray
        except ray.exceptions.RayError as error:  # it has the worker's error as text alone
            if reasons := WORKER_ERROR.findall(str(error)):
                raise DearError(reasons[0]) from error
            raise
        finally:
            ray.shutdown()


def predict_files(
    paths: Sequence[str],
    bundle: Bundle,
    out: Path | str,
    cluster: Cluster,
    *,
    stamps: Iterable[str] = (),
    shard: int | None = None,
    progress: Progress = silent,
    **how: Any,
) -> PredictionsFile:
    """Predict files and addresses on a cluster, into a folder of Parquet files with the columns of
    `dear.cluster.predict`, each written whole. Files that are there are kept.

    Args:
        stamps: What shows whether an image is another by now, by default its path.
        shard: Images of a file, by default 64 to 2048, by their number. An unfinished file is made again.
        how: Further arguments of `dear.cluster.predict`.

    Raises DataError if no image can be read, OutputError for a folder with predictions of other images or in
    another way, SettingsError without Ray or a cluster.
    """
    import pyarrow.parquet as pq

    shard = shard or min(MOST, max(FEWEST, len(paths) // FILES))
    out, count = expanded(out), -(-len(paths) // shard)
    facts = json.dumps([identify_bundle(bundle), shard, repr(sorted(how.items()))])
    key = fingerprint(facts, *(stamps or paths))
    make_folder(out)
    with locked(out, DataSettings().cache_folder()):
        _begin(out / JOB, {"key": key, "images": len(paths), "shards": count})
        for part in out.glob(f"*{PART}"):  # of a killed command; a reader of the folder takes it for a file
            part.unlink(missing_ok=True)
        files = [out / f"part-{number:06}.parquet" for number in range(count)]
        missing = [number for number, file in enumerate(files) if not file.exists()]
        if missing:
            with cluster.connected() as ray:
                tables = [_table(paths[at * shard : (at + 1) * shard], shard=at) for at in missing]
                share = cluster.share_among(len(tables))
                rows = predict(ray.data.from_arrow(tables), bundle, block=None, **how, **share)
                done = len(paths) - sum(map(len, tables))
                progress("predicting", done, len(paths))
                sizes = {number: len(table) for number, table in zip(missing, tables, strict=True)}
                for number, table in _whole_shards(rows, sizes):
                    with output_file(files[number]) as file:
                        pq.write_table(table, file)
                    done += len(table)
                    progress("predicting", done, len(paths))
        unreadable = [
            Unreadable(row["path"], row["reason"])
            for file in files
            for row in pq.read_table(file, columns=["path", "reason"], filters=_IS_BROKEN).to_pylist()
        ]
    if len(unreadable) == len(paths):
        raise DataError(f"none of {len(paths)} images can be read: {unreadable[0].reason}")
    return PredictionsFile(out, len(paths) - len(unreadable), unreadable)


_IS_BROKEN = [("reason", "!=", "")]
"""Rows whose reason is not null."""


def _begin(file: Path, job: Mapping[str, Any]) -> None:
    """Write what a folder of predictions is of. Raises OutputError if it is of something else."""
    if file.exists():
        if read_json(file) != job:
            raise OutputError(
                f"{file.parent} has predictions of other images, of another classifier or with other "
                "options: choose another --out."
            )
        return
    with output_file(file) as content:
        content.write(json.dumps(job).encode())


def _table(paths: Sequence[str], **columns: Any) -> Any:
    """Rows with these paths and the same value in each other column, or one for each."""
    import pyarrow as pa

    for name, value in columns.items():
        columns[name] = value if isinstance(value, list) else [value] * len(paths)
    return pa.table({"path": list(paths)} | columns)


def _whole_shards(rows: Any, sizes: Mapping[int, int]) -> Iterator[tuple[int, Any]]:
    """The table of each shard, once all its rows are there."""
    import pyarrow as pa

    parts = dict[int, list[Any]]()
    for block in rows.iter_batches(batch_size=None, batch_format="pyarrow"):
        numbers = block.column("shard")
        for number in numbers.unique().to_pylist():
            parts.setdefault(number, []).append(block.filter(pa.compute.equal(numbers, number)))
            if sum(map(len, parts[number])) == sizes[number]:
                yield number, pa.concat_tables(parts.pop(number)).drop_columns(["shard"])


def encode_on(cluster: Cluster, folder: Path, bundle: Bundle, **options: Any) -> Load:
    """What `build_index` takes as ``load``: the files of each chunk and their features, from workers that
    read the folder, which is at the same place on each machine, or at an address.
    """

    def load(stamps: Stamps, chunks: Iterable[Sequence[str]]) -> Generator[Files]:
        tables = [
            _table(chunk, size=[stamps[path][0] for path in chunk], mtime=[stamps[path][1] for path in chunk])
            for chunk in chunks
        ]
        if not tables:
            return
        with cluster.connected() as ray:
            arguments = (bundle, options, {"folder": folder})
            dataset = ray.data.from_arrow(tables)
            rows = on_workers(dataset, _Index, arguments, None, **cluster.share_among(len(tables)))
            for block in rows.iter_batches(batch_size=None, batch_format="pyarrow"):
                yield [_entry(row) for row in block.to_pylist()]

    return load


def features_on(cluster: Cluster, bundle: Bundle, **options: Any) -> Encode:
    """What `dear.adapters.evaluation.evaluate` takes as ``encode``: the features of image files from workers.
    It raises DataError for one that cannot be read, SettingsError for images that are not in files.
    """

    def encode(images: Images) -> Iterator[Float[Tensor, "batch feature embed"]]:
        photos, items = leave_subsets(images)
        if not isinstance(photos, PhotoImages):
            raise SettingsError("--cluster reads image files: give a folder, a table or an archive of these.")
        paths = [whole_path(within(photos.folder, photos.paths[item])) for item in items.tolist()]
        shard = min(MOST, max(FEWEST, len(paths) // FILES))
        tables = [_table(paths[start : start + shard]) for start in range(0, len(paths), shard)]
        with cluster.connected() as ray:
            share = cluster.share_among(len(tables))
            rows = on_workers(ray.data.from_arrow(tables), _Features, (bundle, options, {}), None, **share)
            for block in rows.iter_batches(batch_size=None, batch_format="pyarrow"):
                for reason in filter(None, block.column("reason").to_pylist()):
                    raise DataError(reason)
                rows_of_block = [
                    torch.frombuffer(bytearray(row), dtype=torch.float32)
                    for row in block.column("features").to_pylist()
                ]
                yield torch.stack(rows_of_block).unflatten(1, (-1, block.column("embed")[0].as_py()))

    return encode


def _entry(row: Mapping[str, Any]) -> tuple[Entry, Tensor | None]:
    entry = Entry(row["path"], row["size"], row["mtime"], row["sha256"], reason=row["reason"])
    return entry, None if row["features"] is None else torch.tensor(row["features"])


class _Features(Worker):
    """A worker that gives all features of files as they are computed, that of the frozen backbone too."""

    def rows(self, table: Any) -> Mapping[str, Any]:
        import pyarrow as pa

        found, results, vocabulary = list[bytes | None](), list[Any](), self.predictor.own_vocabulary
        for part in self.reader.read(pictures_of(table), BATCH):
            pixels = [image.pixels for image in part if isinstance(image.pixels, Tensor)]
            encoded: Iterator[Tensor] = iter(())
            if pixels:
                with torch.no_grad():
                    features = vocabulary.image_features(torch.stack(pixels), frozen=True)
                encoded = iter(features.transpose(0, 1).float().cpu())
            for image in part:
                results.append(image.pixels)
                is_read = isinstance(image.pixels, Tensor)
                found.append(next(encoded).contiguous().numpy().tobytes() if is_read else None)
        return {
            "features": pa.array(found, pa.binary()),
            "embed": pa.array([vocabulary.text.shape[1]] * len(found), pa.int64()),
            "reason": reasons_of(results),
        }


class _Index(Worker):
    """A worker that reads files as an index does, and encodes them."""

    def rows(self, table: Any) -> Mapping[str, Any]:
        import pyarrow as pa

        encoder, rows = BundleEncoder(self.predictor), table.to_pylist()
        stamps = {row["path"]: (row["size"], row["mtime"]) for row in rows}
        read = partial(read_entry, self.how["folder"], stamps, encoder.preprocess)
        files = in_parallel(read, [row["path"] for row in rows], self.reader.threads)
        views = [view for _, view in files if view is not None]
        parts = [torch.stack(views[start : start + BATCH]) for start in range(0, len(views), BATCH)]
        remaining = chain.from_iterable(encoder.images(part).tolist() for part in parts)
        found = [None if view is None else next(remaining) for _, view in files]
        return {
            "sha256": pa.array([entry.sha256 for entry, _ in files], pa.string()),
            "features": pa.array(found, pa.list_(pa.list_(pa.float32()))),
            "reason": pa.array([entry.reason for entry, _ in files], pa.string()),
        }
