"""Tip-Adapter (Zhang et al., ECCV 2022)."""
