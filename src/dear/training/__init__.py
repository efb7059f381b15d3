"""Training: one loop for every method, its schedule and checkpoints, and the pretraining of the tiny CLIP."""
