"""PromptKD (Li et al., CVPR 2024)."""
