"""Frozen CLIP: load, towers as trunk and span, taps. The only package that imports open_clip."""
