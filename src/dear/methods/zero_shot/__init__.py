"""Zero-shot CLIP."""
