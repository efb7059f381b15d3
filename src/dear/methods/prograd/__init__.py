"""ProGrad (Zhu et al., ICCV 2023)."""
