"""CLIP-Adapter (Gao et al., IJCV 2023)."""
