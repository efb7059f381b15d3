"""TCP (Yao et al., CVPR 2024)."""
