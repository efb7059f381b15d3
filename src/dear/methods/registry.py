"""The methods by name, and building them. Reading the table does not load torch: a method's code is imported
when it is built.

Every folder of this package is a method: settings and declaration in its ``__init__``, the code in
``method.py``; there is no list of them.
Methods of other packages are named by their class, "package.module:Class" (`register`).
"""

import re
import sys
from collections.abc import Mapping
from dataclasses import fields, replace
from importlib import import_module
from itertools import chain
from pathlib import Path
from pkgutil import iter_modules
from types import MappingProxyType, ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, get_type_hints

import dear.methods
from dear.backbone.names import REAL, Access, gives
from dear.errors import CodeError, RoleTableError, SettingsError, UnknownNameError
from dear.methods.declaration import Declaration, MethodSettings
from dear.methods.source import source_hash
from dear.text import list_names

if TYPE_CHECKING:
    import torch

    from dear.backbone.clip import Clip
    from dear.methods.base import Method
    from dear.roles.table import RoleTable


def _declared() -> dict[str, Declaration]:
    """The declarations by method name, in the order of their papers; within a paper, methods that train
    nothing come first.
    """
    folders = [module.name for module in iter_modules(dear.methods.__path__) if module.ispkg]
    packaged = [import_module(f"dear.methods.{folder}").METHOD for folder in folders]
    packaged.sort(key=lambda method: (method.arxiv, method.trains is not None))
    return {method.name: method for method in packaged}


_methods = _declared()
METHODS: Mapping[str, Declaration] = MappingProxyType(_methods)

FROZEN = "zero-shot"
"""Unadapted CLIP: the baseline of all methods."""

DEFAULT_METHOD = "dear"
"""The method that `dear run` compares with zero-shot: the paper's own."""
AUTO = "auto"
"""In place of the name of a method: `dear fit` chooses one by the training images."""
FIT_METHOD = "dear+"
"""The method of `dear fit` where no image can be left out to choose by. It also judges labels where the
chosen method cannot be fitted again with images left out."""


JUDGES_IMAGES = ("ensemble", FIT_METHOD)
"""Methods whose features other than that of the class are evidence from images."""


class Candidate(NamedTuple):
    """A method with its settings."""

    method: str
    settings: Mapping[str, Any] = MappingProxyType({})


CANDIDATES = (
    Candidate("ensemble"),
    Candidate(FIT_METHOD, MappingProxyType({"views": 0})),
    Candidate(FIT_METHOD),
    Candidate(FROZEN),
)
"""What `dear fit` chooses among, the first of equals; where there is a role table, methods that use it come
first. Cheap methods of other packages come after all of them.
"""

USUAL = (FROZEN, DEFAULT_METHOD)
"""The methods that are run by default."""

PATH = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
"""A class outside the package, "package.module:Class"."""


def register(path: str) -> Declaration:
    """The declaration of a class outside the package, "package.module:Class", from then on among METHODS.

    The module is imported, from the current folder too: call it for a path from the command line or from
    Python code, never for one that was read from a file. The class is a `dear.methods.base.Method`, made from
    (clip, generator, settings); its settings are of the class that its attribute ``settings`` is annotated
    with, its other facts those of its ``declaration``: its own or, if it derives from a packaged method, that
    method's. Raises SettingsError.
    """
    if path in _methods:
        return _methods[path]
    from dear.methods.base import Method

    module, _, name = path.partition(":")
    try:
        imported = _imported(module)
        kind = getattr(imported, name)
    except (ImportError, AttributeError, SyntaxError) as error:
        raise SettingsError(f"the method {path} cannot be imported: {error}.") from error
    if not (isinstance(kind, type) and issubclass(kind, Method)):
        raise SettingsError(f"{path} is not a subclass of dear.methods.base.Method.")
    values = {field.name: vars(kind).get(field.name) for field in fields(Declaration)}
    if misplaced := [name for name, value in values.items() if isinstance(value, bool | str | tuple)]:
        raise SettingsError(
            f"{path} sets {list_names(misplaced)} on the class: give them in its declaration, as in "
            f"declaration = dear.Declaration({misplaced[0]}=...); the name is always the path."
        )
    settings = get_type_hints(kind).get("settings", MethodSettings)
    if not (isinstance(settings, type) and issubclass(settings, MethodSettings)):
        raise SettingsError(f"the settings of {path} are not a dear.methods.declaration.MethodSettings.")
    names = {field.name for field in fields(settings)}
    for row in settings.own_rows():
        if unknown := {*row.settings, *row.when, *chain.from_iterable(row.by_data.values())} - names:
            raise SettingsError(
                f"the row {row.name!r} of {path} sets {list_names(sorted(unknown))}, but its settings are "
                f"{list_names(sorted(names)) or 'none'}."
            )
    declared = replace(
        kind.declaration,
        name=path,
        arxiv="",
        implementation=name,
        settings=settings,
        module=module,
        code_hash=source_hash(imported),
    )
    for method in _methods.values():
        if method.folder == declared.folder:
            raise SettingsError(f"the options of {path} would be those of the method {method.name}.")
    _methods[path] = declared
    return declared


def _imported(module: str) -> ModuleType:
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        folder = str(Path.cwd())
        if error.name != module.partition(".")[0] or folder in sys.path:
            raise
        sys.path.append(folder)
        return import_module(module)


def known_method(name: str) -> str:
    """The name, if a method has it; for the class path of a declared method, that method's name. It imports
    nothing, because the name may come from a file: a class path of any other module must be registered
    (`register`). Raises UnknownNameError, SettingsError.
    """
    if name in METHODS:
        return name
    if PATH.fullmatch(name):
        return _declared_as(name)
    if name in option_groups():
        raise SettingsError(
            f"{name} is the prefix of options of the method {option_groups()[name]}: give that."
        )
    raise UnknownNameError("method", name, METHODS)


def _declared_as(path: str) -> str:
    """The name of the method whose class has this path. Raises SettingsError."""
    for name, declared in METHODS.items():
        if path == f"{declared.home}:{declared.implementation}":
            return name
    raise SettingsError(
        f"the method {path} is a class outside this package, and no file makes dear import code. If you "
        f"trust it, name it on the command line too (--methods {path} in `dear run`, --method {path} in "
        f"other commands), or call dear.register({path!r}) in Python."
    )


def option_groups() -> dict[str, str]:
    """Methods with settings, by the prefix of their options: "mmrlpp" for mmrl++, as in --mmrlpp.beta."""
    return {method.folder: name for name, method in METHODS.items() if method.settings is not MethodSettings}


def methods_with_roles() -> list[str]:
    """The methods that use a role table, and so take options of the role mask."""
    return [name for name, method in METHODS.items() if method.roles is not None]


def methods_on(image: Access, text: Access) -> list[str]:
    """Methods that declare what they need of the towers, and need no more than these give, with their
    teachers.
    """
    declared = [method for method in METHODS.values() if method.image and method.text]
    return [
        method.name
        for method in declared
        if method.runs_on(image, text)
        and (method.teacher is None or METHODS[method.teacher].runs_on(image, text))
    ]


def method_class(name: str) -> "type[Method]":
    """The class of a method, from its own module. Raises UnknownNameError."""
    declared = METHODS[known_method(name)]
    kind: type[Method] = getattr(import_module(declared.home), declared.implementation)
    return kind


def build_method(
    name: str,
    clip: "Clip",
    generator: "torch.Generator",
    *,
    roles: "RoleTable | None" = None,
    settings: MethodSettings | None = None,
) -> "Method":
    """Build a new method on a CLIP, or on a `Clip.outline`, whose parameters have no values, in evaluation
    mode. ``generator`` draws its initial parameters; ``settings`` are of the class declared for the method,
    None for the published ones. Raises UnknownNameError for an unknown name, SettingsError for settings of
    another method and for a tower that does not give what the method needs, RoleTableError if it needs a role
    table and there is none, CodeError for a parameter with the name of a `Method`'s attribute.
    """
    name = known_method(name)
    kind, use_of_roles = method_class(name), METHODS[name].roles
    check_settings(name, settings)
    check_towers(name, clip)
    if use_of_roles == "required" and roles is None:
        raise RoleTableError(
            f"{name} needs a role table for {clip.identity}, but none is known: give one with --roles FILE."
        )
    options = {} if use_of_roles is None else {"roles": roles}
    settings = settings or METHODS[name].settings()
    method = kind(clip, generator, settings, **options).eval()  # type: ignore[arg-type]
    method.declaration = METHODS[name]  # with the name of a class of another package
    _check_names(method)
    _check_spans(method, name, clip)
    return method


def check_settings(name: str, settings: object) -> None:
    """Raise SettingsError for settings of another type than the method's; None stands for its defaults."""
    kind = METHODS[known_method(name)].settings
    if settings is not None and type(settings) is not kind:
        raise SettingsError(f"{name} takes {kind.__name__}, not {type(settings).__name__}.")


def check_towers(name: str, clip: "Clip") -> None:
    """Raise SettingsError, naming the methods that work, if a method needs more of a tower than it gives."""
    method = METHODS[name]
    for tower, access, needed in (
        ("image", clip.image.access, method.image or "features"),
        ("text", clip.text.access, method.text or "features"),
    ):
        if not gives(access, needed):
            raise _unsuitable(name, clip, f"needs the {needed} of the {tower} tower")


def _check_names(method: "Method") -> None:
    """Raise CodeError for a parameter, buffer or module that takes the name of an attribute of `Method`, and
    for a hook that is never called, because the class does not derive from what has it.
    """
    from dear.methods.base import Method
    from dear.methods.optional import OPTIONAL

    path = f"{type(method).__module__}:{type(method).__qualname__}"
    for name in (*method._parameters, *method._buffers, *method._modules):
        if any(name in kind.__annotations__ or hasattr(kind, name) for kind in (Method, *OPTIONAL)):
            raise CodeError(
                f"the class {path} sets self.{name}, but {name} is an attribute of every method "
                "(dear.Method): give yours another name."
            )
    for kind in OPTIONAL:
        names = (name for name in (*vars(kind), *kind.__annotations__) if not name.startswith("_"))
        for name in () if isinstance(method, kind) else names:
            if hasattr(method, name):
                raise CodeError(
                    f"the class {path} has {name}, which is never used: derive it from "
                    f"{kind.__module__}.{kind.__name__} too, or give it another name."
                )


def _check_spans(method: "Method", name: str, clip: "Clip") -> None:
    """Raise SettingsError if the settings, or a method that does not declare its needs, change layers that a
    tower does not give.
    """
    for kind, tower, first in (
        ("image", clip.image, method.image_from),
        ("text", clip.text, method.text_from),
    ):
        if tower.access == "features" and first <= tower.depth:
            raise _unsuitable(name, clip, f"with these settings changes layers of the {kind} tower")


def _unsuitable(name: str, clip: "Clip", what: str) -> SettingsError:
    fitting, model = methods_on(clip.image.access, clip.text.access), clip.identity.model
    return SettingsError(
        f"{name} {what}, but that of {model} gives features only. On {model} run {', '.join(fitting)}; "
        f"for {name} choose a backbone with layers and heads, as --model {REAL.model}."
    )


def frozen_clip(clip: "Clip") -> "Method":
    """Unadapted CLIP as a method: nothing is drawn or trained."""
    import torch

    return build_method(FROZEN, clip, torch.Generator())
