"""ProVP-Ref (Xu et al., IJCV 2024)."""
