"""An index at scale: time to build and to query, recall against exact search, memory, disk.

    python benchmarks/index.py                                  # a trial: 2,000 vectors
    python benchmarks/index.py --rows 200000 --embed 512 --data random clustered

Each kind and storage runs in a separate process, so that its peak memory is its own. Vectors are random unit
vectors ("random", which no index can handle well: nothing is near anything) or drawn around centres
("clustered", like images of a few thousand things). Recall is the share of the exact ten nearest among the
ten answers, by the first feature. With --features N, sizes and the build are of all of them, and queries by
all of them together are timed too.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dear.retrieval import approximate
from dear.retrieval.catalogue import Catalogue, Entry
from dear.retrieval.query import Index
from dear.retrieval.scan import Stamp
from dear.retrieval.vectors import Vectors

CHUNK = 16_384
FOUND = 10
CENTRES_OF = 50  # rows per centre
SEEDS = 1_000_000_007  # between the seeds of two features
SPREAD = 0.7  # length of the noise around a centre of length one


def draw(kind: str, rows: int, embed: int, seed: int, centres: int) -> np.ndarray[Any, Any]:
    """Unit vectors in float32; the centres of clustered ones are the same for every seed."""
    own, shared = np.random.default_rng(seed), np.random.default_rng(0)
    noise = own.standard_normal((rows, embed), dtype=np.float32)
    noise /= np.linalg.norm(noise, axis=1, keepdims=True)
    if kind == "random":
        return noise
    places = shared.standard_normal((centres, embed), dtype=np.float32)
    places /= np.linalg.norm(places, axis=1, keepdims=True)
    found = places[own.integers(centres, size=rows)] + SPREAD * noise
    return found / np.linalg.norm(found, axis=1, keepdims=True)


def fill(place: Path, a: argparse.Namespace) -> Catalogue:
    """A catalogue with vectors and without images, as a build leaves it before its FAISS indexes."""
    metadata = {"identity": "", "features": names(a), "embed": a.embed, "folder": "", "model": ""}
    catalogue, vectors = Catalogue.create(place, metadata), Vectors(place / "vectors-1", a.features, a.embed)
    for start in range(0, a.rows, CHUNK):
        count, centres = min(CHUNK, a.rows - start), max(1, a.rows // CENTRES_OF)
        drawn = [draw(a.data[0], count, a.embed, 1 + start + SEEDS * f, centres) for f in range(a.features)]
        rows = np.stack(drawn, axis=1)
        vectors.write(start, torch.from_numpy(rows))
        with catalogue.change():
            catalogue.put(Entry(f"{start + i}.jpg", Stamp(0, 0), None, start + i) for i in range(len(rows)))
            catalogue.set(rows=start + len(rows))
    return catalogue


def exact(vectors: np.ndarray[Any, Any], queries: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The nearest rows of each query, over all rows in chunks."""
    best = np.zeros((len(queries), 0), dtype=np.float32)
    rows = np.zeros((len(queries), 0), dtype=np.int64)
    for start in range(0, len(vectors), CHUNK):
        scores = queries @ np.asarray(vectors[start : start + CHUNK], dtype=np.float32).T
        best = np.hstack([best, scores])
        rows = np.hstack([rows, np.broadcast_to(start + np.arange(scores.shape[1]), scores.shape)])
        order = np.argsort(-best, axis=1)[:, :FOUND]
        best, rows = np.take_along_axis(best, order, 1), np.take_along_axis(rows, order, 1)
    return rows


def measure(place: Path, a: argparse.Namespace) -> dict[str, Any]:
    """Build one index, then run the queries one after the other."""
    catalogue, vectors = Catalogue.open(place), Vectors(place / "vectors-1", a.features, a.embed)
    mapped, before = vectors.read(0, a.rows), peak_mib()
    built, size = 0.0, 0
    for feature in range(a.features):
        started = time.perf_counter()
        index = approximate.build(vectors.read(feature, a.rows), a.kinds[0], a.storages[0])
        built += time.perf_counter() - started
        approximate.save(index, vectors.index(feature))
        size += vectors.index(feature).stat().st_size
        del index
    peak = peak_mib()
    with catalogue.change():
        catalogue.set(trained=a.rows, kind=a.kinds[0], storage=a.storages[0])
    opened = Index(catalogue)
    queries = draw(a.data[0], a.queries, a.embed, 999_999_937, max(1, a.rows // CENTRES_OF))
    truth, hits, seconds = exact(mapped, queries), 0, []
    opened.query({"class": torch.from_numpy(queries[0])})  # reads the index
    for query, wanted in zip(queries, truth, strict=True):
        started = time.perf_counter()
        found = opened.query({"class": torch.from_numpy(query)}, count=FOUND, effort=a.effort)
        seconds.append(time.perf_counter() - started)
        hits += len({int(hit.path[:-4]) for hit in found} & {*wanted.tolist()})
    mixed = []
    opened.query({name: torch.from_numpy(queries[0]) for name in names(a)})
    for query in queries:
        started = time.perf_counter()
        opened.query({name: torch.from_numpy(query) for name in names(a)}, count=FOUND, effort=a.effort)
        mixed.append(time.perf_counter() - started)
    return {
        "data": a.data[0], "kind": a.kinds[0], "storage": a.storages[0], "rows": a.rows, "embed": a.embed,
        "features": a.features, "build s": round(built, 1),
        "p50 ms": round(1000 * float(np.quantile(seconds, 0.5)), 2),
        "p95 ms": round(1000 * float(np.quantile(seconds, 0.95)), 2),
        "p50 ms, all": round(1000 * float(np.quantile(mixed, 0.5)), 2),
        "recall@10": round(hits / FOUND / len(queries), 4), "index MiB": round(size / 2**20, 1),
        "peak MiB": round(peak), "peak over start MiB": round(peak - before),
    }  # fmt: skip


def names(a: argparse.Namespace) -> list[str]:
    return ["class", *(f"attribute {number}" for number in range(1, a.features))]


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--embed", type=int, default=64)
    parser.add_argument("--features", type=int, default=1)
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--data", nargs="+", default=["random", "clustered"], choices=["random", "clustered"])
    parser.add_argument("--kinds", nargs="+", default=["flat", "hnsw", "ivf"])
    parser.add_argument("--storages", nargs="+", default=["float16", "int8"])
    parser.add_argument("--effort", type=float, default=1.0)
    parser.add_argument("--place", type=Path, help=argparse.SUPPRESS)
    a = parser.parse_args()
    if a.place:
        print(json.dumps(measure(a.place, a)))
        return
    columns: list[str] = []
    for data in a.data:
        with tempfile.TemporaryDirectory() as made:
            a.data = [data]
            fill(Path(made), a).close()
            for kind in a.kinds:
                for storage in a.storages:
                    words = [sys.executable, __file__, "--place", made, "--data", data, "--kinds", kind]
                    words += ["--storages", storage, "--rows", str(a.rows), "--embed", str(a.embed)]
                    words += ["--queries", str(a.queries), "--effort", str(a.effort)]
                    words += ["--features", str(a.features)]
                    done = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True)
                    row = json.loads(done.stdout)
                    if not columns:
                        columns = [*row]
                        print("| " + " | ".join(columns) + " |\n|" + " --- |" * len(columns))
                    print("| " + " | ".join(str(row[c]) for c in columns) + " |", flush=True)


if __name__ == "__main__":
    main()
