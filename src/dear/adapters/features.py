"""The features of images beside a bundle, so that the next fit encodes only images that are new."""

from pathlib import Path

from safetensors.torch import save

from dear.adapters.bundle_config import read_config
from dear.errors import plural, warn
from dear.reading.files import ReadingError, expanded
from dear.reading.tensors import read_tensors
from dear.training.features import FeatureStore
from dear.writing import output_file

FEATURES = "features.safetensors"


def default_backbone(
    model: str | None, pretrained: str | None, folder: Path | str | None
) -> tuple[str | None, str | None]:
    """The names of a backbone; without any, that of the bundle in a folder. Raises BundleError."""
    backbone = {} if folder is None else read_config(expanded(folder))["backbone"]
    given = model is not None or pretrained is not None
    return (model, pretrained) if given else (backbone.get("model"), backbone.get("pretrained"))


def read_features(folder: Path | str | None) -> FeatureStore:
    """The features that an earlier fit has left in its bundle's folder; none if they cannot be read."""
    if folder is None:
        return FeatureStore({})
    try:
        return FeatureStore(read_tensors(expanded(folder) / FEATURES))
    except (ReadingError, KeyError, ValueError) as error:
        warn(f"{folder}: its features cannot be read ({error}): all images are encoded")
        return FeatureStore({})


def save_features(folder: Path, store: FeatureStore) -> None:
    """Write the features of the images that took part in a fit, if there are any. Raises OutputError."""
    if tensors := store.tensors():
        with output_file(folder / FEATURES, "the features") as file:
            file.write(save(tensors))
    else:
        (folder / FEATURES).unlink(missing_ok=True)


def tell_reused(folder: Path | str | None, store: FeatureStore) -> None:
    """Say how many images the features of an earlier fit in a folder have spared."""
    if folder is None:
        return
    images, known = len(store.images), len(store.images - store.encoded)
    why = "" if known else ": they are others, or what encodes them is"
    warn(f"{folder}: {known} of {plural(images, 'image')} are known from it{why}")
