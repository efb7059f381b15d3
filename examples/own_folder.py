"""From a folder of images, one folder per class, to a classifier that explains its predictions.

Run it with your folder (a real CLIP, ViT-B-16, is then fetched from the hub, once), or without arguments to
try it with the tiny CLIP on pictures of the Attribute World:

    python examples/own_folder.py photos/
"""

import sys
import tempfile
from pathlib import Path

from PIL import Image

import dear


def world_folder(place: Path, images: int = 8) -> Path:
    """Write some pictures of a world task as a folder of images."""
    task = dear.load_dataset("street-signs")
    for label, name in enumerate(task.classnames):
        (place / name).mkdir(parents=True)
        chosen = (task.train.labels == label).nonzero().flatten()[:images]
        for number, picture in enumerate(task.train.load(chosen)):
            Image.fromarray(picture.permute(1, 2, 0).numpy()).save(place / name / f"{number}.png")
    return place


def main(data: Path, work: Path, model: str | None = None) -> None:
    # 30% of each class is held out for testing, unless the folder has `train/` and `test/`.
    short = {"epochs": 3}
    bundle = dear.fit(data, work / "bundle", shots=4, train=short, model=model)
    scores = bundle.scores
    print(f"accuracy on test images: {scores.accuracy:.3f}", end=" ")
    print(f"(zero-shot {scores.zero_shot:.3f}, chance {scores.chance:.3f})")

    predictor = dear.Predictor(work / "bundle")
    pictures = sorted(path for path in data.rglob("*") if path.is_file())[::20]
    for prediction in predictor.predict(pictures, top=1):
        best = prediction.best
        reasons = ", ".join(f"{name} {part:.1f}" for name, part in best.evidence.items())
        print(f"{prediction.image}: {best.name} {best.probability:.2f} ({reasons})")

    # Any other classes by name: this is still a CLIP.
    (prediction,) = predictor.predict(pictures[:1], classes=["a red thing", "a blue thing", "a green thing"])
    print([(one.name, round(one.probability, 2)) for one in prediction.top])


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        if len(sys.argv) > 1:
            main(Path(sys.argv[1]), Path(folder))
        else:
            main(world_folder(Path(folder) / "images"), Path(folder), model="tiny")
