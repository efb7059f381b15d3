"""TaskRes (Yu et al., CVPR 2023)."""
