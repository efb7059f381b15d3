"""Training: one loop for every method, its settings, checkpoints and caches."""
