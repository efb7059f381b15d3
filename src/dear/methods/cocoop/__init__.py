"""CoCoOp (Zhou et al., CVPR 2022)."""
