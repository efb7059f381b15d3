"""Classify a folder of any size with Ray Data, on all cores or GPUs of this machine or of a cluster.

Run it with the folder of a bundle, a folder of images (also s3://...) and a folder for the predictions
(Parquet); or without arguments to try it on pictures of the Attribute World:

    python examples/large_folder.py my-classifier photos/ predictions/

Needs the extra `cluster`. Each worker loads the bundle once; images are read, classified and written a block
at a time, so that their number does not matter.
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import ray
from own_folder import world_folder

import dear


class Classify:
    """A worker: the best class of each image, and its probability; "" for an image that cannot be read."""

    def __init__(self, bundle: str) -> None:
        self.predictor = dear.Predictor(bundle)

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, Any]:
        found = [*self.predictor.predict_each([*batch["bytes"]], top=1)]
        best = [getattr(one, "best", None) for one in found]
        return {
            "path": batch["path"],
            "class": [one.name if one else "" for one in best],
            "probability": [one.probability if one else 0.0 for one in best],
        }


def main(bundle: Path, photos: str, out: str, workers: int = 1, gpus: float = 0) -> None:
    images = ray.data.read_binary_files(photos, include_paths=True)
    predictions = images.map_batches(
        Classify,
        fn_constructor_args=(str(bundle.resolve()),),
        batch_size=64,
        concurrency=workers,
        num_gpus=gpus,
    )
    predictions.write_parquet(out)
    counts = ray.data.read_parquet(out).groupby("class").count().to_pandas()
    print(f"{counts['count()'].sum()} images, by class:")
    print(counts.sort_values("class").to_string(index=False))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        resources = ray.init().cluster_resources()
        gpus = int(resources.get("GPU", 0))
        main(Path(sys.argv[1]), *sys.argv[2:4], workers=gpus or int(resources["CPU"]), gpus=min(gpus, 1))
    else:
        with tempfile.TemporaryDirectory() as folder:
            photos = world_folder(Path(folder) / "photos", images=2)
            dear.fit(photos, Path(folder) / "bundle", method="zero-shot", model="tiny", verbose=False)
            ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
            main(Path(folder) / "bundle", str(photos), f"{folder}/predictions")
