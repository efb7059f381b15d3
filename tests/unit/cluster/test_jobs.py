"""Predictions and an index on a cluster: the rows of one process, once each, whoever is killed."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dear.backbone.clip import Clip
from dear.data.loading import load_dataset
from dear.data.settings import DataSettings
from dear.errors import DataError, DearError, OutputError, SettingsError
from dear.writing import PART
from tests.helpers.bundles import small_predictor
from tests.helpers.commands import parse_arguments
from tests.helpers.errors import refuses
from tests.unit.data.photos import picture

SOURCES = str(Path(__file__).parents[3] / "src")
DRIVER = """
import sys
from dear.adapters.saved_run import load_bundle
from dear.cluster.jobs import Cluster, predict_files
address, bundle, out, *paths = sys.argv[1:]
predict_files(paths, load_bundle(bundle), out, Cluster(address, workers=2), shard=3)
"""


@pytest.fixture
def photos(tmp_path: Path) -> list[str]:
    """Eleven pictures and one that is none."""
    files = [picture(tmp_path / "photos" / f"{level}.png", level) for level in range(0, 220, 20)]
    files[5].write_bytes(b"no picture")
    return [str(file) for file in files]


def test_a_worker_gives_the_rows_of_a_predictor(only_clip: Clip, photos: list[str]) -> None:
    pa = pytest.importorskip("pyarrow", reason="Ray's rows need pyarrow")
    from dear.cluster import _Encode, _Predict

    predictor = small_predictor(only_clip)
    worker = _Predict(predictor.bundle, {"clip": only_clip}, {"top": 2}, "cpu")
    of_bytes = [Path(path).read_bytes() for path in photos]
    for columns in ({"path": photos}, {"path": photos, "bytes": of_bytes}):
        rows = worker(pa.table({**columns, "site": [*range(11)]})).to_pylist()
        assert [row["site"] for row in rows] == [*range(11)]
        for row, expected in zip(rows, predictor.predict_each(photos, 2), strict=True):
            assert "bytes" not in row
            if row["path"] == photos[5]:
                assert "not an image" in row["reason"]
                assert {row[name] for name in row if name not in ("path", "site", "reason")} == {None}
                continue
            assert (row["reason"], row["class"]) == (None, expected.best.name)
            assert row["probability"] == pytest.approx(expected.best.probability, abs=1e-5)
            assert dict(row["evidence"]) == pytest.approx(expected.best.evidence, abs=1e-4)
            assert [each["class"] for each in row["top"]] == [each.name for each in expected.top]
    rows = _Encode(predictor.bundle, {"clip": only_clip}, {"batch": 4}, "cpu")(
        pa.table({"path": photos})
    ).to_pylist()
    assert rows[5]["features"] is None
    features = predictor.encode(photos[:5] + photos[6:])
    for row, expected in zip(rows[:5] + rows[6:], features, strict=True):
        assert [*map(list, row["features"])] == expected.half().tolist()


def test_eval_scores_the_features_of_workers(
    only_clip: Clip, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In this process, without Ray: the scores are those without workers, in the order of the images."""
    pytest.importorskip("pyarrow", reason="Ray's rows need pyarrow")
    from dear.adapters.evaluation import evaluate
    from dear.cluster import jobs

    predictor = small_predictor(only_clip)
    for number, name in enumerate(predictor.classes):
        for level in range(5):
            picture(tmp_path / "photos" / name / f"{level}.png", 20 * level + number)
    blocks = list[Any]()

    class Here(jobs.Cluster):
        @contextmanager
        def connected(self) -> Iterator[Any]:
            yield SimpleNamespace(data=SimpleNamespace(from_arrow=list))

    def run_here(tables: list[Any], worker: Any, arguments: Any, *_: Any, **__: Any) -> Any:
        bundle, options, how = arguments
        blocks.extend(map(worker(bundle, {**options, "clip": only_clip}, how, "cpu"), tables))
        return SimpleNamespace(iter_batches=lambda **_: iter(blocks))

    monkeypatch.setattr(jobs, "on_workers", run_here)
    monkeypatch.setattr(jobs, "FEWEST", 4)
    expected = evaluate(predictor, str(tmp_path / "photos")).scores
    encode = jobs.features_on(Here("local"), predictor.bundle)
    found = evaluate(predictor, str(tmp_path / "photos"), encode=encode).scores
    assert len(blocks) == -(-5 * len(predictor.classes) // 4)
    assert (found.accuracy, found.zero_shot) == (expected.accuracy, expected.zero_shot)
    assert found.log_loss == pytest.approx(expected.log_loss, abs=1e-5)
    assert found.calibration_error == pytest.approx(expected.calibration_error, abs=1e-5)
    (tmp_path / "photos" / predictor.classes[0] / "0.png").write_bytes(b"no picture")
    with pytest.raises(DataError, match="not an image"):
        [*encode(load_dataset(str(tmp_path / "photos"), DataSettings(test_share=1.0, broken=None)).test)]


def test_a_block_has_pictures() -> None:
    pa = pytest.importorskip("pyarrow", reason="Ray's rows need pyarrow")
    from dear.cluster.workers import pictures_of

    refuses(DataError, ("bytes", "path"), pictures_of, pa.table({"picture": ["a.png"]}))


def test_a_shard_is_written_when_all_its_rows_are_there() -> None:
    pa = pytest.importorskip("pyarrow", reason="Ray's rows need pyarrow")
    from dear.cluster.jobs import _whole_shards

    class Rows:
        def iter_batches(self, **_: Any) -> Iterator[Any]:
            for shards in ([2, 2, 5], [5], [2, 7]):
                yield pa.table({"path": [f"{shard}" for shard in shards], "shard": shards})

    whole = [(number, table.to_pydict()) for number, table in _whole_shards(Rows(), {2: 3, 5: 2, 7: 2})]
    assert whole == [(5, {"path": ["5", "5"]}), (2, {"path": ["2", "2", "2"]})]


def test_what_a_killed_command_left_is_no_prediction(
    only_clip: Clip, photos: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A whole file that was killed before it got its name: readers of the folder would count its rows."""
    pa = pytest.importorskip("pyarrow", reason="Ray's rows need pyarrow")
    import pyarrow.parquet as pq

    from dear.cluster import jobs

    class Here(jobs.Cluster):
        @contextmanager
        def connected(self) -> Iterator[Any]:
            yield SimpleNamespace(data=SimpleNamespace(from_arrow=list))

        def share_among(self, _: int) -> dict[str, Any]:
            return {}

    def predict_here(tables: list[Any], *_: Any, **__: Any) -> Any:
        rows = [table.append_column("reason", pa.array([None] * len(table), pa.string())) for table in tables]
        return SimpleNamespace(iter_batches=lambda **_: iter(rows))

    monkeypatch.setattr(jobs, "predict", predict_here)
    (tmp_path / "out").mkdir()
    left = tmp_path / "out" / f"part-000001.parquet.0a1b2c3d{PART}"
    pq.write_table(pa.table({"path": photos[3:6], "reason": pa.array([None] * 3, pa.string())}), left)
    bundle = small_predictor(only_clip).bundle
    jobs.predict_files(photos, bundle, tmp_path / "out", Here("local"), shard=3)
    assert pq.read_table(tmp_path / "out").column("path").to_pylist() == photos


def test_other_predictions_are_not_mixed_in(only_clip: Clip, photos: list[str], tmp_path: Path) -> None:
    """Refused before a cluster is looked for."""
    pytest.importorskip("pyarrow", reason="Ray's rows need pyarrow")
    from dear.cluster.jobs import JOB, Cluster, predict_files

    (tmp_path / "out").mkdir()
    (tmp_path / "out" / JOB).write_text('{"key": "another", "images": 1, "shards": 1}')
    bundle = small_predictor(only_clip).bundle
    refuses(OutputError, "--out", predict_files, photos, bundle, tmp_path / "out", Cluster("local"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["predict", "bundle", "photos", "--cluster", "local"], "give a folder with --out"),
        (["predict", "bundle", "photos", "--workers", "2"], "give --cluster too"),
        (["eval", "bundle", "photos", "--gpus", "1"], "give --cluster too"),
        (["index", "build", "photos", "--features", "heads", "--cluster", "local"], "features of a bundle"),
    ],
)
def test_options_that_a_cluster_needs(words: list[str], message: str, tmp_path: Path) -> None:
    from dear.cli.index import command_build
    from dear.cli.predict import command

    picture(tmp_path / "photos" / "1.png")
    arguments = parse_arguments(words)
    if words[0] != "index":
        many = arguments["many"]
        if many.cluster is None:
            refuses(SettingsError, message, many.find, "cpu")
            return
        arguments |= {"images": [str(tmp_path / "photos")]}
    refuses(SettingsError, message, command if words[0] == "predict" else command_build, **arguments)


def _kill_a_worker(killed: list[int], done: threading.Event, parent: int) -> None:
    """Kill the first worker of this cluster that is seen at work."""
    while not done.is_set() and not killed:
        for entry in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                is_worker = entry.read_bytes().startswith(b"ray::MapWorker(MapBatches(_Predict)).submit")
                if is_worker and parent in _parents(int(entry.parent.name)):
                    os.kill(int(entry.parent.name), signal.SIGKILL)
                    killed.append(int(entry.parent.name))
                    return
            except OSError:  # gone in the meantime
                continue
        time.sleep(0.02)


def _parents(pid: int) -> set[int]:
    found = set[int]()
    while pid > 1:
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        found.add(pid)
    return found


@pytest.mark.long
def test_a_worker_and_a_driver_that_are_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On two nodes of one core each: all rows are there, once, and as those of one process."""
    cluster_utils = pytest.importorskip("ray.cluster_utils")
    import pyarrow.parquet as pq

    import dear
    from dear.adapters.evaluation import evaluate
    from dear.adapters.index_encoder import BundleEncoder
    from dear.cluster.jobs import Cluster, encode_on, features_on, predict_files
    from dear.retrieval.build import build_index

    monkeypatch.setenv("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
    monkeypatch.setenv("PYTHONPATH", SOURCES)
    handler = signal.getsignal(signal.SIGTERM)
    for kind, first in (("dark", 0), ("light", 128)):
        picture(tmp_path / "others" / kind / "0.png", first + 2, (31, 29))
        for level in range(first, first + 120, 4):
            picture(tmp_path / "photos" / kind / f"{level}.png", level, (31, 29))
    (tmp_path / "photos" / "dark" / "bad.png").write_bytes(b"no picture")
    paths = sorted(str(path) for path in (tmp_path / "photos").rglob("*.png"))
    bundle = tmp_path / "bundle"
    dear.fit(tmp_path / "photos", bundle, method="zero-shot", model="tiny", shots=2, verbose=False)
    predictor, out = dear.Predictor(bundle, "cpu"), tmp_path / "predictions"
    cluster = cluster_utils.Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    killed, done = list[int](), threading.Event()
    try:
        cluster.add_node(num_cpus=1)
        signal.signal(signal.SIGTERM, handler)  # a node replaces it
        words = [sys.executable, "-c", DRIVER, cluster.address, str(bundle), str(out), *paths]
        driver = subprocess.Popen(words, stderr=subprocess.DEVNULL)
        while not [*out.glob("*.parquet")]:
            assert driver.poll() is None
            time.sleep(0.01)
        driver.kill()
        driver.wait()
        before = {path.name: path.stat().st_mtime_ns for path in out.glob("*.parquet")}
        assert 0 < len(before) < -(-len(paths) // 3)
        killer = threading.Thread(target=_kill_a_worker, args=(killed, done, os.getpid()))
        killer.start()
        where = Cluster(cluster.address, workers=2)
        result = predict_files(paths, predictor.bundle, out, where, shard=3)
        done.set()
        killer.join()
        for wrong in ({"classes": ["twice", "twice"]}, {"refuse": 7}):  # of a call, and of a start
            with pytest.raises(DearError, match=r"twice|refuse is 7") as caught:
                predict_files(
                    paths[:3], predictor.bundle, tmp_path / "wrong" / next(iter(wrong)), where, **wrong
                )
            assert "\n" not in str(caught.value)
        build_index(
            BundleEncoder(predictor), tmp_path / "photos", tmp_path / "there",
            load=encode_on(where, tmp_path / "photos", predictor.bundle),
        )  # fmt: skip
        encode = features_on(where, predictor.bundle)
        scores = evaluate(predictor, str(tmp_path / "others"), encode=encode).scores
    finally:
        done.set()
        cluster.shutdown()
        signal.signal(signal.SIGTERM, handler)
    assert killed
    assert (result.images, len(result.unreadable)) == (60, 1)
    assert all((out / name).stat().st_mtime_ns == time_before for name, time_before in before.items())
    rows = pq.read_table(out).to_pylist()
    assert sorted(row["path"] for row in rows) == paths
    alone = evaluate(predictor, str(tmp_path / "others")).scores
    assert (scores.images, scores.accuracy) == (alone.images, alone.accuracy)
    assert scores.log_loss == pytest.approx(alone.log_loss, abs=1e-5)
    by_path = {row["path"]: row for row in rows}
    for path, here in zip(paths, predictor.predict_each(paths), strict=True):
        if by_path[path]["reason"] is None:
            assert by_path[path]["class"] == here.best.name
            assert by_path[path]["probability"] == pytest.approx(here.best.probability, abs=1e-5)
    build_index(BundleEncoder(predictor), tmp_path / "photos", tmp_path / "here")
    for vectors in (tmp_path / "here" / "vectors-1").iterdir():
        assert (tmp_path / "there" / "vectors-1" / vectors.name).read_bytes() == vectors.read_bytes()
