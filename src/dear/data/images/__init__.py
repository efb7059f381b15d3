"""From a file to a tensor: which images are read, decoding, caches, prefetching, transforms."""
