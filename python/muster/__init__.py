"""muster: data, collectives and elastic training over muster's C++ library.

    import muster

    context = muster.context()                  # under mpirun, srun, torchrun, muster-launch, or alone
    loader = muster.open("csv:data.csv?label=0") | muster.shuffle(1) | muster.batch(256) | muster.prefetch(4)
    for batch in loader:                        # this rank's part of each batch
        gradient = compute(batch.values, batch.labels)
        context.world.allreduce(gradient, "sum")

The manual is docs/python.md; `import muster.torch` adds the backend "muster" to torch.distributed (docs/torch.md).
"""
import atexit as _atexit
import os as _os
import sys as _sys

from . import errors
from ._extension import (__version__, augment, augment_by, batch, batch_part, cache, context as _context, group, info, loader,
                         map, normalise, open, prefetch, prepare, session, session_step, settings_help, shuffle, skip_bad_records,
                         source, standardise, step, tables, work)
from ._extension import _close_all, _forget_all
from .errors import (configuration_error, data_error, departure, error, mismatch_error, peer_failure,
                     source_error, timeout_error, training_error)
from .spawning import spawn

__all__ = ["__version__", "augment", "augment_by", "batch", "batch_part", "cache", "configuration_error", "context", "crop_flip",
           "data_error", "departure", "error", "errors", "group", "info", "loader", "map", "mismatch_error", "normalise", "open",
           "peer_failure", "prefetch", "prepare", "session", "session_step", "settings_help", "shuffle", "skip_bad_records", "source",
           "source_error", "spawn", "standardise", "step", "tables", "timeout_error", "training_error", "work"]


class context(_context):
    __doc__ = _context.__doc__

    def __init__(self, argv=None, **settings):
        super().__init__(argv, **settings)
        _last.append(self)

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        if value is not None:
            _abort(self, value)
        self.close()


def crop_flip(layout="chw"):
    """A step: the usual augmentation for CIFAR, a random crop of the image padded by four pixels and a flip, normalised
    with CIFAR-10's mean and deviation."""
    return augment(pad=4, flip=True, mean=[0.4914, 0.4822, 0.4465], deviation=[0.2470, 0.2435, 0.2616], layout=layout)


_last = []  # the contexts that an exception at the top level aborts


def _abort(place, value):
    """Tells the other ranks why this rank ends: they get a peer_failure with the reason instead of waiting."""
    try:
        text = f"{type(value).__name__}: {value}".splitlines()[0]
        place.world.abort(text, getattr(value, "exit_status", 1))
    except error:
        pass  # it has ended, or its ranks are threads


def _on_exception(kind, value, trace, before=_sys.excepthook):
    for place in _last:
        _abort(place, value)
    before(kind, value, trace)


_sys.excepthook = _on_exception
_programs = _os.path.join(_os.path.dirname(__file__), "bin")
if _os.path.exists(_os.path.join(_programs, "muster-store")):  # rank 0 of an elastic job starts it
    _os.environ.setdefault("MUSTER_STORE_PROGRAM", _os.path.join(_programs, "muster-store"))
_atexit.register(_close_all)
_os.register_at_fork(after_in_child=_forget_all)
