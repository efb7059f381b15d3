"""Files around a data set: split lists, tables, class names, templates and caches."""

import json
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import ExifTags, Image
from scipy.io import savemat

from dear.data.image_check import broken_images
from dear.data.images.photos import DecodeCache
from dear.data.loading import load_dataset
from dear.data.settings import DataSettings
from dear.data.sources.benchmarks import benchmarks, published_names, read_benchmark
from dear.data.sources.huggingface_hub import choose, stored_manifest
from dear.data.sources.listing import Listing, Row
from dear.training.trunks import ViewCache, ViewFingerprint
from tests.fuzz.readers.target import TakenOver, photo, written


def image(form: str, size: tuple[int, int] = (31, 23), **options: bool) -> Callable[[Path], Path]:
    """Writes an image of a format, with directories of EXIF. A TIFF or a lossless WebP of 600 x 500 pixels is
    decoded in a process of its own.
    """

    def write(folder: Path) -> Path:
        noise, exif = Image.effect_noise(size, 50).convert("RGB"), Image.Exif()
        exif[ExifTags.Base.Orientation] = 6
        exif.get_ifd(ExifTags.IFD.Exif)[ExifTags.Base.ExposureTime] = 0.5
        noise.save(folder / "x", form, exif=exif, **options)
        return folder / "x"

    return write


def parquet(folder: Path) -> Path:
    """Writes a Hugging Face data set as a repository of the hub has it."""
    import pyarrow
    from pyarrow.parquet import write_table

    photo(folder / "x.png")
    cell = {"bytes": (folder / "x.png").read_bytes(), "path": None}
    images = pyarrow.array(
        [cell] * 4, pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])
    )
    features = {"image": {"_type": "Image"}, "label": {"_type": "ClassLabel", "names": ["red", "sea"]}}
    table = pyarrow.table({"image": images, "label": [0, 1, 0, 1]})
    table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    file = folder / "mine" / "data" / "train-00000-of-00001.parquet"
    file.parent.mkdir(parents=True)
    write_table(table, file)
    use_parquet(file)  # loads the library before memory is bounded
    return file


def use_parquet(file: Path) -> None:
    load_dataset(f"hf:{file.parents[1]}", DataSettings(cache=file.parents[2] / "cache"))


def manifest(folder: Path) -> Path:
    """What the hub stated of a data set, kept for the next time."""
    files = {f"default/{split}/0000.parquet": "ab" * 32 for split in NOWHERE}
    return written(folder / "manifest.json", json.dumps({"commit": "cd" * 20, "files": files}))


def use_manifest(file: Path) -> None:
    names = choose(stored_manifest(file).files, "", "someone/photos").splits.values()
    if outside := [name for part in names for name in part if ".." in Path(name).parts]:
        raise TakenOver(f"it names {outside[0]}")


def saved(name: str) -> Callable[[Path], Path]:
    """Writes a Hugging Face data set; returns one of its files."""

    def write(folder: Path) -> Path:
        import datasets

        datasets.disable_progress_bars()
        photo(folder / "x.png")
        cell = {"bytes": (folder / "x.png").read_bytes(), "path": None}
        features = datasets.Features(image=datasets.Image(), label=datasets.ClassLabel(names=["red", "sea"]))
        rows = {"image": [cell] * 4, "label": [0, 1, 0, 1]}
        table = datasets.Dataset.from_dict(rows, features=features)
        if name == "dataset_dict.json":
            table = datasets.DatasetDict(train=table, test=table)
        table.save_to_disk(folder / "saved")
        use_saved(folder / "saved" / name)  # loads the library before memory is bounded
        return folder / "saved" / name

    return write


def use_saved(file: Path) -> None:
    load_dataset(str(file.parent), DataSettings(cache=file.parent.parent / "cache"))


def archive(folder: Path) -> Path:
    """Writes a zip of a folder of images, one member stored, the others deflated, with an empty folder and a
    table that lists no images; a class's name is not in ASCII.
    """
    photo(folder / "x.png")
    with zipfile.ZipFile(folder / "photos.zip", "w") as file:
        for number, split in enumerate(NOWHERE * 2):
            member = f"photos/{split}/{('red', 'möwe')[number // 2]}/{number}.png"
            file.write(folder / "x.png", member, zipfile.ZIP_DEFLATED if number else zipfile.ZIP_STORED)
        file.mkdir("photos/train/red/more")
        file.writestr("photos/notes.csv", "sep=;\nid;label\n7;red\n")
    return folder / "photos.zip"


def use_archive(file: Path) -> None:
    cache = file.parent / "cache"
    load_dataset(str(file), DataSettings(cache=cache))
    if outside := [
        path for path in file.parent.iterdir() if path not in (file, cache, file.parent / "x.png")
    ]:
        raise TakenOver(f"it wrote {outside[0]}")


NOWHERE = ("train", "test")


def split(folder: Path) -> Path:
    rows = [["red/0.png", 0, "red"], ["sea/0.png", 1, "sea"]]
    for path, *_ in rows:
        photo(folder / "images" / str(path))
    return written(folder / "split_zhou_Photos.json", json.dumps({part: rows for part in NOWHERE}))


def ucf(folder: Path) -> Path:
    """The lists of UCF101, of two classes with two images each to train on."""
    lists = folder / "ucfTrainTestlist"
    lists.mkdir()
    written(lists / "trainlist01.txt", "".join(f"{name}/v_{n}.avi 1\n" for name in ACTIONS for n in (1, 2)))
    written(lists / "testlist01.txt", "".join(f"{name}/v_3.avi\n" for name in ACTIONS))
    return written(lists / "classInd.txt", "".join(f"{n} {name}\n" for n, name in enumerate(ACTIONS, 1)))


def ucf_images(folder: Path) -> Path:
    return ucf(folder).with_name("trainlist01.txt")


def use_ucf(file: Path) -> None:
    settings = DataSettings(cache=file.parent / "cache")
    listing = read_benchmark(benchmarks()["UCF101"], file.parents[1], settings)
    rows = [row for part in listing.splits.values() for row in part]
    if outside := [row.path for row in rows if ".." in Path(row.path).parts]:
        raise TakenOver(f"it names {outside[0]}")


ACTIONS = tuple(name.replace("_", "") for name in published_names(benchmarks()["UCF101"]))


def matlab(folder: Path) -> Path:
    """The labels of OxfordFlowers, two images of each class, packed."""
    labels = np.repeat(np.arange(1, 103, dtype=np.uint8), 3)
    savemat(folder / "imagelabels.mat", {"labels": labels}, do_compression=True)
    return folder / "imagelabels.mat"


def use_matlab(file: Path) -> None:
    read_benchmark(benchmarks()["OxfordFlowers"], file.parent, DataSettings(cache=file.parent / "cache"))


def csv(folder: Path) -> Path:
    lines = [f"{at}.png,{at % 2},{part}" for at, part in enumerate(("train", "train", "test", "test"))]
    return written(folder / "table.csv", "\n".join(["sep=,", "path,label,split", *lines]) + "\n")


def jsonl(folder: Path) -> Path:
    rows = [{"path": f"{at}.png", "label": at % 2, "split": part} for at, part in enumerate(NOWHERE * 2)]
    return written(folder / "table.jsonl", "".join(json.dumps(row) + "\n" for row in rows))


def read_table(file: Path) -> None:
    for name in ("0", "1", "2", "3"):
        photo(file.parent / f"{name}.png")
    load_dataset(str(file), DataSettings(cache=file.parent / "cache"))


def names_json(folder: Path) -> Path:
    csv(folder)
    return written(folder / "names.json", json.dumps({"0": "red", "1": "sea"}))


def names_csv(folder: Path) -> Path:
    csv(folder)
    return written(folder / "names.csv", "0,red\n1,sea\n")


def names_text(folder: Path) -> Path:
    csv(folder)
    return written(folder / "names.txt", "0 red\n1 blue sea\n")


def read_names(file: Path) -> None:
    settings = DataSettings(classnames=file, cache=file.parent / "cache")
    for name in ("0", "1", "2", "3"):
        photo(file.parent / f"{name}.png")
    load_dataset(str(file.parent / "table.csv"), settings)


def templates(folder: Path) -> Path:
    return written(folder / "templates.txt", "a photo of a {}.\na {} at sea.\n")


def picture(folder: Path) -> Path:
    DecodeCache(folder, 23).put("ab" * 32, torch.randint(0, 256, (3, 23, 29), dtype=torch.uint8))
    return DecodeCache(folder, 23)._path("ab" * 32)


def use_picture(file: Path) -> None:
    found = DecodeCache(file.parents[3], 23).get("ab" * 32)
    if found is not None and (found.dtype != torch.uint8 or found.ndim != 3 or len(found) != 3):
        raise TakenOver("it is no picture")


def checked(folder: Path) -> Path:
    photo(folder / "images" / "a.png")
    look_again(folder)
    (found,) = (folder / "cache" / "checked").iterdir()
    return written(found, json.dumps([0]))


def look_again(folder: Path) -> None:
    rows = {"test": (Row("a.png", 0),)}
    listing = Listing("x", folder / "images", ("a",), ("a",), rows, "by hand")
    if broken_images(listing, DataSettings(cache=folder / "cache")):
        raise TakenOver("a fine image counts as broken")


FACTS = ViewFingerprint("w", "i", 1, 20, "32", "cpu")


def view(folder: Path) -> Path:
    store = ViewCache(folder, 2**20, torch.float32)
    store.begin(FACTS, 3)
    store.put(1, [0], torch.rand(1, 5, 7))
    (found,) = folder.rglob("*.view")
    return found


def use_view(file: Path) -> None:
    store = ViewCache(file.parents[4], 2**20, torch.float32)
    store.begin(FACTS, 3)
    found = store.get(1, [0])
    if found is not None and not found[1].isfinite().all():
        raise TakenOver("a trunk output is no number")
