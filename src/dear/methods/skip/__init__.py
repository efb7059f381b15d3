"""Settings and declaration of Skip Tuning."""

from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated

from dear.methods.declaration import Declaration, Layer, MethodSettings, SmallInt, Template
from dear.reading.typed import PositiveFloat, Range


@dataclass(frozen=True)
class SkipSettings(MethodSettings):
    """Settings of Skip Tuning; the defaults are those of its base-to-novel runs.

    Attributes:
        first: The first layer, of 12, that is trained in both towers; all later layers are trained too.
        share: Scale layer numbers, which are given for 12 layers, to the depth of the tower [ours]. If not,
            use them as they are.
        top: Share of the classes that always stay in the loss of a batch: those whose text features are
            nearest to its images. Of the other classes, some are skipped. With 1, no class is skipped.
        most: Largest number of classes that always stay in the loss of a batch, if top gives more.
        decay: How slowly a class's probability of staying in the loss falls with its rank by distance, for
            classes that do not always stay.
        image_rate: Learning rate of the image tower as a multiple of the text tower's.
        template: Template of the prompts; the data set's own if empty.
    """

    training = MappingProxyType({"optimizer": "sgd", "lr": 2e-5, "epochs": 20, "batch": 4, "warmup_lr": 1e-6})

    first: Layer = 7
    share: bool = True
    top: Annotated[float, Range(0, 1, above=True)] = 0.5
    most: SmallInt = 50
    decay: PositiveFloat = 0.3
    image_rate: PositiveFloat = 0.25
    template: Template = ""


METHOD = Declaration("skip", "2412.11509", "SkipTuning", SkipSettings, image="layers", text="layers")
