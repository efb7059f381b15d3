"""Settings of a pretraining run of the tiny CLIP."""

import math
from dataclasses import dataclass

from dear.training.settings import require_range


@dataclass(frozen=True)
class PretrainSettings:
    """Settings of a pretraining run; together with the version of the code they determine the weights (bit
    for bit on one machine).

    Attributes:
        images: Images to train on, each seen once.
        batch: Images per step.
        captions: Captions drawn per image.
        lr: Peak learning rate of AdamW.
        weight_decay: Weight decay of matrices; vectors have none.
        warmup: Steps of linear warm-up, before the cosine to zero.
        restart: Number of images after which warm-up and cosine start again, at half the peak (a warm restart
            as in SGDR, Loshchilov & Hutter, ICLR 2017); 0 for none.
        bf16: Forward and backward pass in bfloat16, with float32 master weights.
        seed: Seed of the initial weights and the images.
        emphasis: A factor for which each image gets one extra caption that names nothing else: texture is
            learned last. Several, separated by commas, give one extra caption each.
        spelled: Probability that a word of a caption is spelled out, so that the letters of words outside
            the vocabulary get a meaning.
        late: Weight of the term that makes the class token gather late (``early_share``); 0 for none. In real
            ViT CLIPs the late attention layers build the class token (Gandelsman et al., ICLR 2024).
        late_first: The first layer that may write image content into the class token.
        late_mlp: Weight of the term that makes it gather through attention heads (``mlp_share``); 0 for none.
    """

    images: int = 1_700_000
    batch: int = 128
    captions: int = 2
    lr: float = 1e-3
    weight_decay: float = 0.05
    warmup: int = 500
    restart: int = 1_000_000
    bf16: bool = True
    seed: int = 0
    emphasis: str = "texture"
    spelled: float = 0.1
    late: float = 0.0
    late_first: int = 9
    late_mlp: float = 0.0

    def __post_init__(self) -> None:
        require_range(self, "images", "batch", "captions", minimum=1)
        require_range(self, "warmup", "restart", "weight_decay", "late", "late_mlp")
        require_range(self, "late_first", minimum=2)
        require_range(self, "lr", above=True)
        require_range(self, "spelled", maximum=1)

    @property
    def emphasised(self) -> list[str]:
        """The factors in ``emphasis``, in order."""
        return [name.strip() for name in self.emphasis.split(",")]

    @property
    def steps(self) -> int:
        """Total number of steps; the last batch is full."""
        return math.ceil(self.images / self.batch)

    def lr_at(self, step: int) -> float:
        """Learning rate of a step, counted from 0: linear warm-up, then a cosine to zero; repeated at half
        the peak after the restart.
        """
        first = min(math.ceil(self.restart / self.batch), self.steps) or self.steps
        peak, begin, end = (self.lr, 0, first) if step < first else (self.lr / 2, first, self.steps)
        if step - begin < self.warmup:
            return peak * (step - begin + 1) / self.warmup
        done = (step - begin - self.warmup) / max(1, end - begin - self.warmup)
        return peak * 0.5 * (1 + math.cos(math.pi * done))
