"""Atomic writing of files and folders."""
