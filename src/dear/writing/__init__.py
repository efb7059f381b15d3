"""Files and folders that we leave: written whole or not at all."""
