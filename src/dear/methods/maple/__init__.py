"""MaPLe (Khattak et al., CVPR 2023)."""
