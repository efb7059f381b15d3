"""Search images by an attribute: adapt, index a folder, ask by colour alone and by colour against class.

    python examples/attribute_search.py            # images of the Attribute World, the embedded tiny CLIP
    python examples/attribute_search.py DIR FOLDER # a bundle of yours and a folder of images

Needs the extra `retrieval`. Writes search.png, a contact sheet.
"""

import sys
import tempfile
from pathlib import Path

import torch
from PIL import Image

from dear.data.dataset import load_dataset
from dear.retrieval.build import build_index
from dear.retrieval.query import Index
from dear.retrieval.search import by_image
from dear.retrieval.sheet import Row, contact_sheet, save_sheet
from dear.serving.encoder import BundleEncoder
from dear.serving.fit import fit
from dear.serving.predictor import Predictor

TASK, SHOTS, EPOCHS = "cluttered-cards", 4, 2


def world_images(folder: Path, count: int = 200) -> Path:
    """Some test images of a world task as files."""
    images = load_dataset(TASK).test
    for item in torch.linspace(0, len(images) - 1, count).long().tolist():
        picture = images.load(torch.tensor([item]))[0]
        Image.fromarray(picture.permute(1, 2, 0).numpy()).save(folder / f"{item:04}.png")
    return folder


def main() -> None:
    with tempfile.TemporaryDirectory() as made:
        if len(sys.argv) == 3:
            bundle, folder = Path(sys.argv[1]), Path(sys.argv[2])
        else:
            bundle, folder = Path(made, "bundle"), Path(made, "images")
            folder.mkdir()
            fit(TASK, bundle, shots=SHOTS, epochs=EPOCHS)
            world_images(folder)
        encoder = BundleEncoder(Predictor(bundle))
        build_index(encoder, folder, Path(made, "index"))
        index = Index.open(Path(made, "index"))
        query = min(folder.rglob("*.png"))
        searches = {"class": {"class": 1.0}, "color": {"color": 1.0}, "not color": {"class": 1.0, "color": -0.5}}
        rows = [Row(f"by {name}", by_image(index, encoder, query, w)) for name, w in searches.items()]
        for row in rows:
            print(row.title, *(f"{hit.path} {hit.score:.2f}" for hit in row.hits[:5]))
        save_sheet(contact_sheet(query, query.name, rows, folder), Path("search.png"))


if __name__ == "__main__":
    main()
