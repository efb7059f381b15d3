"""dear: adapt CLIP by the roles of its attention heads.

Its names are listed in `__init__.pyi`; each is loaded when it is first used.
"""

from dear.threads import prepare_process as _prepare_process  # isort: skip (from here on Ctrl-C is one line)

from importlib.metadata import PackageNotFoundError, version

import lazy_loader

try:
    __version__ = version("dear-vlm")
except PackageNotFoundError:  # run from a source tree that is not installed
    __version__ = "0+unknown"

_prepare_process()
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
