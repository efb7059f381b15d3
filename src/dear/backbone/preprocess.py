"""How a picture becomes the pixels that an image tower was trained on, as the model's own files say."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, Self, TypedDict

from dear.backbone import openclip as open_clip
from dear.backbone.model_config import Ratio, Shift
from dear.reading.files import ReadingError
from dear.reading.typed import shown, typed

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
        return cls(size, **settings)._with_floats()

    @classmethod
    def from_transformers(cls, size: int, kind: str, content: Mapping[str, Any], path: Path | str) -> Self:
        """From a preprocessor_config.json of transformers for a model of ``kind`` "clip" or "siglip", whose
        tower sees ``size`` pixels. Raises ReadingError for a step that is not done here.
        """
        for key, value in USUAL.items():
            setting = content.get(key, value)
            if not isinstance(setting, bool | float | int) or abs(setting - value) > 1e-5 * value:
                raise ReadingError(path, f"its {key} is {shown(setting)}: only models with {value} fit")
        settings = typed({key: content[key] for key in KEYS if key in content}, _Transformers, path)
        if (resample := settings.get("resample", BICUBIC)) not in RESAMPLE:
            raise ReadingError(path, f"its resample is {resample}: only 2 (bilinear) and 3 (bicubic) fit")
        gray = (0.5, 0.5, 0.5) if kind == "siglip" else None  # both mean and deviation
        view = cls(
            size,
            settings.get("image_mean", gray or cls.mean),
            settings.get("image_std", gray or cls.std),
            RESAMPLE[resample],
            rounds_crop_down=True,
        )
        return view._resized_as(settings, kind, path)._with_floats()

    def _resized_as(self, content: "_Transformers", kind: str, path: Path | str) -> Self:
        crops = content.get("do_center_crop", kind == "clip")
        resized, crop = content.get("size", self.size), content.get("crop_size", self.size)
        if isinstance(resized, int):
            sides = ("shortest_edge",) if kind == "clip" else ("height", "width")
            resized = dict.fromkeys(sides, resized)
        square = {"height": self.size, "width": self.size}
        if resized == square:
            return replace(self, resize_mode="squash")
        short_side = resized["shortest_edge"] if resized.keys() == {"shortest_edge"} else 0
        if crops and crop in (square, self.size) and short_side >= self.size:
            return replace(self, short_side=None if short_side == self.size else short_side)
        raise ReadingError(
            path,
            f"its size is {shown(resized)} with the crop_size {shown(crop if crops else None)}, which is not "
            f"the square of {self.size} pixels that its image tower takes",
        )

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

    def _with_floats(self) -> Self:
        floats = {name: tuple(map(float, getattr(self, name))) for name in ("mean", "std")}
        return type(self)(**(asdict(self) | floats))


class _Transformers(TypedDict, total=False):
    size: int | dict[str, int]
    crop_size: int | dict[str, int]
    do_center_crop: bool
    resample: int
    image_mean: tuple[Shift, Shift, Shift]
    image_std: tuple[Ratio, Ratio, Ratio]


KEYS = frozenset(_Transformers.__annotations__)
USUAL = {"do_resize": True, "do_rescale": True, "rescale_factor": 1 / 255, "do_normalize": True}
"""What is always done to pixels here: a file with another value is refused."""
BILINEAR, BICUBIC = 2, 3
RESAMPLE: dict[int, Interpolation] = {BILINEAR: "bilinear", BICUBIC: "bicubic"}
"""Pillow's numbers of filters."""
