"""Methods of adapting a CLIP, one folder each, with a common interface."""
