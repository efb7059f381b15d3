"""A CLIP's weights in float16, as CoOp and its successors keep them on a GPU."""

import copy

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm

from dear.backbone.clip import Clip


class Float32Norm(nn.Module):
    """A LayerNorm computed in float32 whose result has the type of its input; its parameters keep their
    names.
    """

    def __init__(self, norm: nn.LayerNorm) -> None:
        super().__init__()
        self.weight, self.bias = norm.weight, norm.bias
        self.shape, self.eps = norm.normalized_shape, norm.eps

    def forward(self, x: Tensor) -> Tensor:
        return layer_norm(x.float(), self.shape, self.weight, self.bias, self.eps).to(x.dtype)


def half(clip: Clip) -> Clip:
    """A copy of a CLIP with its weights in float16 but for the LayerNorms, the temperature and the statistics
    of pixels, which stay in float32. Its identity is that of the original.

    Source: ``convert_weights`` of OpenAI's CLIP (clip/model.py), with which CoOp's code (KaiyangZhou/CoOp at
    ff61507, trainers/coop.py, PREC fp16) loads it. Differs from the code: that keeps embeddings of words, of
    positions and of the class token in float32 and rounds them where they are used, with the same result.
    """
    found = copy.deepcopy(clip, {id(clip.tokenizer): clip.tokenizer})
    for module in [*found.modules()]:
        for name, child in [*module.named_children()]:
            if isinstance(child, nn.LayerNorm):
                setattr(module, name, Float32Norm(child))
    norms = {
        id(one) for each in found.modules() if isinstance(each, Float32Norm) for one in each.parameters()
    }
    for parameter in found.parameters():
        if id(parameter) not in norms and parameter is not found.logit_scale:
            parameter.data = parameter.data.to(torch.float16)
    return found
