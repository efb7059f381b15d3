"""Settings and declaration of TAC."""

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Literal, Self

from dear.errors import SettingsError
from dear.methods.declaration import PROMPT, Declaration, Layer, MethodSettings, SmallInt, Tokens
from dear.methods.shared_settings import imagenet_templates
from dear.reading.files import ReadingError, expanded, read_bytes
from dear.reading.plain import parse_json
from dear.reading.typed import Form, NonNegativeFloat, Range, typed
from dear.text import list_names

TEMPLATES = "templates"
Sha256 = Annotated[str, Form("of 64 digits, or empty", lambda text: len(text) in (0, 64))]


@dataclass(frozen=True)
class TacSettings(MethodSettings):
    """Settings of TAC; the defaults are the published ones, except that no descriptions come with it.

    Attributes:
        descriptions: A JSON file with a list of sentences for the name of each class that is trained on, or a
            folder with such a file for each data set, DATASET.json. "templates" fills 60 of CLIP's templates
            for ImageNet in their place, which the authors do only for EuroSAT and DTD.
        descriptions_sha256: The SHA-256 that the file must have, if set. Records have it.
        clusters: Number of clusters of the training classes; with fewer classes than that, each class is a
            cluster. Each cluster takes a token of every prompt.
        centers: The cluster centers with which classes that were not trained on are scored: "training" takes
            the centers of the training classes, and "own" computes centers from the descriptions of the
            scored classes.
        image_depth: The number of first layers of the image tower, of 12, that have their own prompts.
        text_depth: The number of first layers of the text tower, of 12, that have their own prompts.
        image_tokens: Prompt tokens of the image tower.
        text_tokens: Prompt tokens of the text tower.
        words: Words before the class name. The learned tokens of the first text layer start as the embeddings
            of these words, and of the end token and padding after them if there are more tokens than words.
            If empty, the learned tokens start at random.
        views: Random views of each image in a step.
        dropout: Share of the values of an image's feature that are dropped in training.
        teacher_dropout: Drop values of the frozen image feature too, as the authors' code does.
        text_weight: Weight of the distance of text features from the text features of the descriptions.
        image_weight: Weight of the distance of image features from the frozen ones.
        share: Scale layer numbers, which are given for 12 layers, to the depth of the tower [ours]. If not,
            use them as they are.
        token_std: Standard deviation of random initial values.
    """

    training = MappingProxyType({"optimizer": "sgd", "lr": 0.0025, "epochs": 20, "batch": 8, "crop": 0.4})
    paths = ("descriptions",)

    descriptions: Annotated[str, Form("that names a file or folder, or templates", bool)] = TEMPLATES
    descriptions_sha256: Sha256 = ""
    clusters: SmallInt = 5
    centers: Literal["training", "own"] = "training"
    image_depth: Layer = 12
    text_depth: Layer = 12
    image_tokens: Tokens = 5
    text_tokens: Tokens = 5
    words: str = PROMPT
    views: SmallInt = 4
    dropout: Annotated[float, Range(0, 1, below=True)] = 0.3
    teacher_dropout: bool = True
    text_weight: NonNegativeFloat = 20.0
    image_weight: NonNegativeFloat = 25.0
    share: bool = True
    token_std: NonNegativeFloat = 0.02

    def with_files(self, dataset: str) -> Self:
        """The settings with the data set's file in place of a folder, and the file's hash. Raises
        ReadingError for a file that cannot be read, SettingsError for a hash other than the expected one.
        """
        if self.descriptions == TEMPLATES:
            return self
        folder = path = expanded(self.descriptions)
        if os.path.isdir(folder):
            path = folder / f"{dataset}.json"
        _, sha256 = self._read(path)
        return replace(self, descriptions=str(path), descriptions_sha256=sha256)

    def without_files(self) -> Self:
        if self.centers == "own" and self.descriptions != TEMPLATES:
            raise SettingsError(
                "tac.centers own needs descriptions of all classes that are asked for later, which a bundle "
                f"does not hold: fit with --tac.descriptions {TEMPLATES}, or with --tac.centers training."
            )
        return super().without_files()

    def check_classes(self, trained_on: Sequence[str], tested_on: Sequence[str]) -> None:
        """Raise SettingsError for a class without descriptions."""
        self.described([*trained_on, *(tested_on if self.centers == "own" else ())])

    def described(self, classnames: Sequence[str]) -> list[list[str]]:
        """The sentences that describe each class. Underscores in names may be spaces in the file.

        Raises SettingsError for a class without sentences, ReadingError for a file that cannot be read or has
        another content.
        """
        spaced = [name.replace("_", " ") for name in classnames]
        if self.descriptions == TEMPLATES:
            return [[template.format(name) for template in imagenet_templates()] for name in spaced]
        path = expanded(self.descriptions)
        content, _ = self._read(path)
        by_class: dict[str, list[str]] = typed(parse_json(content, path), dict[str, list[str]], path)
        descriptions = []
        for name, spaced_name in zip(classnames, spaced, strict=True):
            sentences = by_class.get(name, by_class.get(spaced_name))
            if not sentences or not all(sentence.strip() for sentence in sentences):
                what = "no descriptions" if sentences is None else f"the descriptions {sentences[:3]!r}"
                raise SettingsError(
                    f"{path} has {what} of the class {spaced_name!r} (it has {list_names([*by_class], 5)}): "
                    "give a list of sentences under that name, or --tac.descriptions "
                    f"{TEMPLATES} for hand-written ones."
                )
            descriptions.append(sentences)
        return descriptions

    def _read(self, path: Path) -> tuple[bytes, str]:
        """A file's content and hash. Raises SettingsError if the settings expect another hash."""
        try:
            content = read_bytes(path)
        except ReadingError as error:
            raise ReadingError(f"tac.descriptions {path}", error.reason, missing=error.missing) from error
        sha256 = hashlib.sha256(content).hexdigest()
        if self.descriptions_sha256 not in ("", sha256):
            raise SettingsError(
                f"{path} has SHA-256 {sha256}, but tac.descriptions_sha256 is {self.descriptions_sha256}: it "
                "was changed. Start again with the file as it is, or restore it."
            )
        return content, sha256


# The paper is not on arXiv: the proceedings of CVPR 2025 are of June.
METHOD = Declaration("tac", "2506", "TAC", TacSettings, image="layers", text="layers")
