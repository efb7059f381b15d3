"""MMRL (Guo and Gu, CVPR 2025)."""
