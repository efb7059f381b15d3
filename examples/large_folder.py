"""Count what is in a folder of any size with Ray Data, on all cores or GPUs of this machine or of a cluster.
`dear predict --cluster` does the same with files that an interrupted command keeps.

Run it with the folder of a bundle, a folder of images (also s3://...) and a folder for the predictions
(Parquet); or without arguments to try it on pictures of the Attribute World:

    python examples/large_folder.py my-classifier photos/ predictions/

Needs the extra `cluster`. Each worker loads the bundle once; images are read, classified and written a block
at a time, so that their number does not matter.
"""

import sys
import tempfile
from pathlib import Path

import ray
from own_folder import world_folder

import dear
from dear.cluster import predict


def main(bundle: Path, photos: str, out: str) -> None:
    images = ray.data.read_binary_files(photos, include_paths=True)
    predict(images, bundle, top=1).write_parquet(out)
    counts = ray.data.read_parquet(out).groupby("class").count().to_pandas()
    print(f"{counts['count()'].sum()} images, by class:")
    print(counts.sort_values("class").to_string(index=False))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        ray.init()
        main(Path(sys.argv[1]), *sys.argv[2:4])
    else:
        with tempfile.TemporaryDirectory() as folder:
            photos = world_folder(Path(folder) / "photos", images=2)
            dear.fit(photos, Path(folder) / "bundle", method="zero-shot", model="tiny", verbose=False)
            ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
            main(Path(folder) / "bundle", str(photos), f"{folder}/predictions")
