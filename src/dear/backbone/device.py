"""Which device to compute on."""

import torch

from dear.errors import SettingsError


def find_device(device: str | torch.device) -> torch.device:
    """The device of a name; "auto" takes the GPU if there is one. Raises SettingsError for a GPU where torch
    finds none.
    """
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    found = torch.device(device)
    if found.type == "cuda" and not torch.cuda.is_available():
        raise SettingsError(f"the device {device} is asked for and torch finds no GPU: choose auto or cpu.")
    return found
