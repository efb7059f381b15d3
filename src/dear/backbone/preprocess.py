"""How a picture becomes the pixels that an image tower was trained on, as the model's own files say."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, Self

from dear.backbone import openclip as open_clip

Triple = tuple[float, float, float]
Interpolation = Literal["bicubic", "bilinear"]
ResizeMode = Literal["shortest", "longest", "squash"]


@dataclass(frozen=True)
class Preprocess:
    """The test view of a model, by the names of open_clip's ``preprocess_cfg``.

    Attributes:
        size: Side of the square that the tower sees, in pixels.
        interpolation: Of every resize; all are antialiased.
        resize_mode: "shortest" resizes the short side and takes the center square, "longest" resizes the long
            side and pads the short one, "squash" resizes both sides whatever the aspect ratio.
        fill_color: Gray level of the padding.
        short_side: Length of the short side before the center is taken, where that is not ``size``.
        rounds_crop_down: The crop begins at the pixel below, as in transformers, not at the nearest one.
    """

    size: int
    mean: Triple = open_clip.OPENAI_DATASET_MEAN
    std: Triple = open_clip.OPENAI_DATASET_STD
    interpolation: Interpolation = "bicubic"
    resize_mode: ResizeMode = "shortest"
    fill_color: int = 0
    short_side: int | None = None
    rounds_crop_down: bool = False

    @classmethod
    def from_open_clip(cls, size: int, config: Mapping[str, Any]) -> Self:
        """From open_clip's ``preprocess_cfg`` or the configuration of one of its tags; other keys, such as a
        tag's address, are ignored.
        """
        names = {field.name for field in fields(cls)} - {"size", "short_side", "rounds_crop_down"}
        settings = {key: value for key, value in config.items() if key in names}
        if settings.get("interpolation") == "random":  # random in training only
            settings["interpolation"] = "bicubic"
        return cls(size, **settings).with_floats()

    def identity(self) -> dict[str, Any]:
        """The fields that enter a model's identity: those that differ from OpenAI's, with mean and standard
        deviation always together. How a crop is rounded follows from the model's format, which is in the
        identity too.
        """
        usual = Preprocess(self.size, rounds_crop_down=self.rounds_crop_down)
        parts = {key: value for key, value in asdict(self).items() if value != getattr(usual, key)}
        if "mean" in parts or "std" in parts:
            parts |= {"mean": self.mean, "std": self.std}
        return parts

    def with_floats(self) -> Self:
        """The same with statistics of floats, which integers would not equal."""
        floats = {name: tuple(map(float, getattr(self, name))) for name in ("mean", "std")}
        return type(self)(**(asdict(self) | floats))
