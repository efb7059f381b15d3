"""Using an adapted model: bundles, predictions, exports, the server."""
