"""MMRL++ (Guo and Gu, IJCV 2026)."""
