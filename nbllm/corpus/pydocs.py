"""`builtin:pydocs`: real English that every CPython carries, so that a tutorial needs no download.

The texts are the language reference's topics (`pydoc_data.topics`) and the docstrings of the standard library. Those
of Python modules are read by parsing their source files with `ast`, so that nothing of theirs runs; those of modules
written in C need an import, and only modules from a short list of harmless ones are imported. Knows nothing of stages
or stores.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import importlib
import inspect
import platform
import sys
import sysconfig
import tokenize
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

_VERSION = 1
"""Raised whenever another set of texts would come out of the same Python."""
_LEAST_CHARACTERS = 100
_SKIPPED_FOLDERS = frozenset({"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__", "lib2to3"})
_C_MODULES = """
    builtins sys posix time math cmath itertools errno gc marshal atexit faulthandler _abc _ast _bisect _codecs
    _collections _csv _datetime _decimal _elementtree _functools _hashlib _heapq _io _json _locale _operator
    _pickle _queue _random _signal _socket _sqlite3 _sre _ssl _stat _string _struct _symtable _thread _tracemalloc
    _warnings _weakref array binascii fcntl grp mmap pwd pyexpat resource select termios unicodedata zlib _bz2
    _lzma _asyncio _contextvars _multiprocessing _posixsubprocess
"""


def identity() -> str:
    """A hash that changes whenever `documents` would give other texts: the build of Python and this file's version."""
    build = f"{_VERSION}\0{platform.python_implementation()}\0{sys.version}\0{sysconfig.get_platform()}"
    return hashlib.sha256(build.encode()).hexdigest()


def documents() -> Iterator[tuple[str, str]]:
    """Yields (name, text): each distinct text of at least 100 characters, in an order that doesn't change.

    Names are unique: `topics/assert`, `asyncio.tasks.Task.cancel`.
    """
    seen: set[bytes] = set()
    names: dict[str, int] = {}
    for name, text in _everything():
        if len(text) < _LEAST_CHARACTERS:
            continue
        key = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
        if key in seen:
            continue
        seen.add(key)
        names[name] = times = names.get(name, 0) + 1
        yield (name if times == 1 else f"{name}#{times}"), text


def _everything() -> Iterator[tuple[str, str]]:
    with contextlib.suppress(ImportError):  # some distributions leave pydoc's data out
        from pydoc_data.topics import topics

        for topic in sorted(topics):
            yield f"topics/{topic}", topics[topic].strip()
    library = Path(sysconfig.get_path("stdlib"))
    for path in sorted(library.rglob("*.py"), key=lambda path: path.relative_to(library).as_posix()):
        relative = path.relative_to(library)
        if _SKIPPED_FOLDERS.isdisjoint(relative.parts) and relative.parts[0] != "pydoc_data":
            module = ".".join(relative.with_suffix("").parts).removesuffix(".__init__")
            yield from _docstrings_of_source(path, module)
    for name in _C_MODULES.split():
        with contextlib.suppress(ImportError):  # not in every build
            yield from _docstrings_of_module(importlib.import_module(name))


def _docstrings_of_source(path: Path, module: str) -> Iterator[tuple[str, str]]:
    """Docstrings of a module, its classes and functions, in the order of the source."""
    try:
        with tokenize.open(path) as file:
            source = file.read()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in old docstrings
            tree = ast.parse(source)
    except (OSError, SyntaxError, UnicodeDecodeError, ValueError):
        return  # templates and bad-on-purpose files of the standard library
    stack: list[tuple[str, ast.AST]] = [(module, tree)]
    while stack:
        name, node = stack.pop()
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            text = ast.get_docstring(node, clean=True)
            if text:
                yield name, text.strip()
        below: list[tuple[str, ast.AST]] = []
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                below.append((f"{name}.{child.name}", child))
            elif isinstance(child, ast.stmt):  # definitions inside `if`, `try`, `with`
                below.append((name, child))
        stack.extend(reversed(below))


def _docstrings_of_module(module: ModuleType) -> Iterator[tuple[str, str]]:
    """Docstrings of a C module, its classes and functions, read from the dictionaries so that no property runs."""
    yield from _docstring(module.__name__, module)
    for name, value in sorted(vars(module).items()):
        if inspect.ismodule(value):
            continue
        if isinstance(value, type):
            if value.__module__ not in (module.__name__, "builtins", module.__name__.lstrip("_")):
                continue
            yield from _docstring(f"{module.__name__}.{name}", value)
            for member, inner in sorted(vars(value).items()):
                if callable(inner) or inspect.isdatadescriptor(inner):
                    yield from _docstring(f"{module.__name__}.{name}.{member}", inner)
        elif inspect.isbuiltin(value) or inspect.isroutine(value):
            yield from _docstring(f"{module.__name__}.{name}", value)


def _docstring(name: str, value: object) -> Iterator[tuple[str, str]]:
    text = getattr(value, "__doc__", None)
    if isinstance(text, str):
        yield name, inspect.cleandoc(text).strip()
