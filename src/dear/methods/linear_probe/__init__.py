"""A linear probe of CLIP (Radford et al., ICML 2021)."""
