"""PromptSRC (Khattak et al., ICCV 2023)."""
