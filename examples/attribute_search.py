"""Search a folder of images by an attribute: by class, by color alone, by class in another color.

Run it with your bundle and folder, or without arguments to try it on pictures of the Attribute World:

    python examples/attribute_search.py my-classifier photos/
"""

import sys
import tempfile
from pathlib import Path

from PIL import Image

import dear
from dear.adapters.index_encoder import BundleEncoder
from dear.data.dataset import Dataset

SEARCHES = {
    "class": {"class": 1.0},
    "color": {"color": 1.0},
    "class in another color": {"class": 1.0, "color": -0.5},
}


def world_images(task: Dataset, place: Path, every: int = 10) -> Path:
    """Write some test pictures of a world task as files."""
    place.mkdir()
    for number in range(0, len(task.test), every):
        picture = task.test.load(task.test.labels.new_tensor([number]))[0]
        Image.fromarray(picture.permute(1, 2, 0).numpy()).save(place / f"{number:04}.png")
    return place


def main(bundle: Path, images: Path, work: Path) -> None:
    encoder = BundleEncoder(dear.Predictor(bundle))
    built = dear.build_index(encoder, images, work / "index")
    print(f"{built.files} images by {', '.join(built.features)}")
    index = dear.open_index(work / "index")
    query = min(path for path in images.rglob("*") if path.suffix in (".png", ".jpg", ".jpeg"))
    for name, weights in SEARCHES.items():
        hits = index.query_image(encoder, query, weights, count=5)
        print(f"by {name}:", *(f"{hit.path} {hit.score:.2f}" for hit in hits))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        if len(sys.argv) == 3:
            main(Path(sys.argv[1]), Path(sys.argv[2]), Path(folder))
        else:
            task = dear.load_dataset("travel-posters")
            dear.fit(task, Path(folder) / "bundle", method="dear+", shots=4)
            main(Path(folder) / "bundle", world_images(task, Path(folder) / "images"), Path(folder))
