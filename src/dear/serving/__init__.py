"""Using an adapted model: fit, save, predict with reasons, export, serve."""
