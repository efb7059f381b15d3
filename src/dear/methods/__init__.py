"""Ways of adapting a CLIP, one file each, on one contract."""
