"""From image files to tensors: supported formats, decoding, caches, prefetching, transforms."""
