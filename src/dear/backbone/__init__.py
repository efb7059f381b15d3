"""Frozen CLIP: loading, towers as trunk and span, head contributions. Only this package imports open_clip."""
