"""Measuring: metrics, one file for each protocol, and run records."""
