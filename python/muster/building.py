"""Compiles the backend of torch.distributed against the PyTorch that is there, by PyTorch's own builder of extensions."""
import hashlib
import importlib.util
import os
import pathlib
import sys

import torch

import muster
from muster.errors import configuration_error

__all__ = ["build", "load"]

_PACKAGE = pathlib.Path(muster.__file__).parent
_SOURCE = _PACKAGE / "torch" / "source"


def _name():
    """Returns a name that changes with torch, Python, muster and the sources of the backend."""
    digest = hashlib.sha256(f"{torch.__version__} {sys.version} {muster.__version__} {_PACKAGE}".encode())
    for path in sorted(_SOURCE.iterdir()):
        digest.update(path.read_bytes())
    return f"torch_backend_{digest.hexdigest()[:12]}"


def _folders():
    """Returns the folders in which the backend may be: the package's, then the user's."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return [_PACKAGE / "torch" / "built", pathlib.Path(cache) / "muster"]


def _open(path, name):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def build(verbose=False):
    """Compiles the backend unless it is there, and returns the path of the module."""
    name = _name()
    for folder in _folders():
        if (folder / name / f"{name}.so").exists():
            return folder / name / f"{name}.so"
    from torch.utils import cpp_extension
    for folder in _folders():
        try:
            (folder / name).mkdir(parents=True, exist_ok=True)
            (folder / name / "written").write_text("")
            break
        except OSError:
            continue
    else:
        raise configuration_error("the backend of torch.distributed cannot be built (no folder can be written); set "
                                  "XDG_CACHE_HOME to a folder")
    print(f"muster: compiling the backend for torch {torch.__version__} into {folder / name}", file=sys.stderr)
    # As one unit: most of the time is that of torch's headers.
    unit = folder / name / "backend_unit.cpp"
    unit.write_text("".join(f'#include "{path}"\n' for path in sorted(_SOURCE.glob("*.cpp"))))
    flags = os.environ.get("MUSTER_TORCH_FLAGS", "-O2").split()
    try:
        cpp_extension.load(name, [str(unit)], build_directory=str(folder / name),
                           extra_include_paths=[str(_PACKAGE / "include")],
                           extra_cflags=["-std=c++20", "-Wall", "-Wno-attributes", "-DMUSTER_COMPILED=1", "-DMUSTER_HAS_TCP=1", *flags],
                           extra_ldflags=[f"-L{_PACKAGE}", "-lmuster_python", f"-Wl,-rpath,{_PACKAGE}",
                                          *[flag for flag in flags if flag.startswith("-fsanitize")]],
                           is_python_module=False, verbose=verbose)
    except RuntimeError as failure:
        raise configuration_error("the backend of torch.distributed does not compile (a C++20 compiler and ninja are needed); "
                                  "`python -m muster build-torch` shows the compiler's words") from failure
    return folder / name / f"{name}.so"


def load():
    """Returns the module of the backend, which is compiled first if it is not there."""
    return _open(build(), _name())
