"""Skip Tuning (Wu et al., CVPR 2025)."""
