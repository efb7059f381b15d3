"""Ways of adapting a CLIP, one folder each, on one contract."""
