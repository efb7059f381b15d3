"""The protocols: one file each says what is trained on, what is tested, and what its results hold."""
