"""CoOp (Zhou et al., IJCV 2022)."""
