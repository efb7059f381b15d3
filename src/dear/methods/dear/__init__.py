"""DeAR (CVPR 2026)."""
