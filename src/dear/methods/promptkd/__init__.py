"""Settings and declaration of PromptKD."""

from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated

from dear.errors import SettingsError
from dear.methods.declaration import Declaration, Layer, MethodSettings, Tokens
from dear.reading.typed import NonNegativeFloat, PositiveFloat, Range

Weight = Annotated[float, Range(0, 1_000_000, above=True)]
"""Far above the authors' weights; the gradients of a loss of 1e30 are not finite in float32 [ours]."""


@dataclass(frozen=True)
class PromptKdSettings(MethodSettings):
    """Settings of PromptKD; the defaults are those of its base-to-novel runs, except for the teacher's
    backbone, which is larger there: ViT-L/14. The teacher has prompts in the first 9 layers of each tower,
    however many there are.

    Attributes:
        teacher: The teacher's backbone, as --model; if empty, the backbone of the run.
        teacher_pretrained: The weights of the teacher's backbone, as --pretrained.
        depth: The number of first layers of the image tower, of 12, that have their own prompts.
        tokens: Prompt tokens of each layer that has prompts.
        kd_weight: Weight of the divergence of the student's scores from the teacher's.
        temperature: What the scores of the student and of the teacher are divided by before their softmax.
        share: Scale layer numbers, which are given for 12 layers, to the depth of the tower [ours]. If not,
            use them as they are.
        token_std: Standard deviation of the prompts' initial values.
    """

    training = MappingProxyType(
        {"optimizer": "sgd", "lr": 0.005, "epochs": 20, "batch": 8, "drop_last": True}
    )

    teacher: str = ""
    teacher_pretrained: str | None = None
    depth: Layer = 9
    tokens: Tokens = 4
    kd_weight: Weight = 1000.0
    temperature: PositiveFloat = 1.0
    share: bool = True
    token_std: NonNegativeFloat = 0.02

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.teacher_pretrained is not None and not self.teacher:
            raise SettingsError(
                f"promptkd.teacher_pretrained is {self.teacher_pretrained!r}, but promptkd.teacher is empty: "
                "name the backbone that these weights are of."
            )

    def teacher_backbone(self) -> tuple[str, str | None]:
        return self.teacher, self.teacher_pretrained


METHOD = Declaration(
    "promptkd",
    "2403.02781",
    "PromptKD",
    PromptKdSettings,
    unlabeled=True,
    teacher="promptsrc",
    image="layers",
    text="features",
)
