"""TAC (Hao et al., CVPR 2025)."""
