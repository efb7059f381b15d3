"""Classes of open_clip and timm by their full names, to tell what a module is without loading either."""

CLIP, CUSTOM = "open_clip.model.CLIP", "open_clip.model.CustomTextCLIP"
VISION, TEXT = "open_clip.transformer.VisionTransformer", "open_clip.transformer.TextTransformer"
TIMM = "open_clip.timm_model.TimmModel"
TIMM_VIT, EVA = "timm.models.vision_transformer.VisionTransformer", "timm.models.eva.Eva"


def is_a(thing: object, *names: str) -> bool:
    """Whether a thing is of a class, given by its full name, or of one derived from it. Nothing is loaded."""
    return any(f"{one.__module__}.{one.__qualname__}" in names for one in type(thing).__mro__)


def just_a(thing: object, *names: str) -> bool:
    """The same without derived classes."""
    return f"{type(thing).__module__}.{type(thing).__qualname__}" in names
