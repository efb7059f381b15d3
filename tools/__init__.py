"""What the project itself runs from a checkout and the wheel does not ship: `python -m tools.NAME --help`."""
