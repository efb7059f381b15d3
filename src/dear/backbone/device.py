"""Device selection."""

import torch

from dear.errors import SettingsError


def find_device(device: str | torch.device) -> torch.device:
    """The device with a name; "auto" selects the GPU if there is one. Raises SettingsError for a GPU if torch
    finds none.
    """
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    found = torch.device(device)
    if found.type == "cuda" and not torch.cuda.is_available():
        raise SettingsError(f"the device {device} was requested, but torch finds no GPU: choose auto or cpu.")
    return found
