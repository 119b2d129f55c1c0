"""The backend "muster" of torch.distributed, for tensors on the host.

    import torch.distributed as dist
    import muster.torch                       # registers it

    dist.init_process_group("muster")         # or "cpu:muster,cuda:nccl"

The first import compiles the backend against the PyTorch that is there and keeps the result; `python -m muster build-torch`
does the same, for an installation. docs/torch.md describes the backend.
"""
import atexit as _atexit
import os as _os
from datetime import timedelta as _timedelta

import torch as _torch
import torch.distributed as _dist

import muster as _muster  # loads the library that the backend shares

from muster.building import load as _load

from .data import loader_dataset

__all__ = ["Options", "ProcessGroupMuster", "loader_dataset"]

_backend = _load()
Options = _backend.Options
ProcessGroupMuster = _backend.ProcessGroupMuster


def _create(options, own_options):
    """Makes the backend of a process group, as torch.distributed asks for it."""
    timeout = options.timeout
    if not isinstance(timeout, _timedelta):
        timeout = _timedelta(seconds=timeout)
    return _backend.create(options.store, options.group_rank, options.group_size, timeout,
                           enable_reconfigure=getattr(options, "enable_reconfigure", False), group_name=options.group_id or "",
                           global_ranks=list(options.global_ranks_in_group),
                           transport=getattr(own_options, "transport", _os.environ.get("MUSTER_TRANSPORT", "auto")))


if "muster" not in _dist.Backend.backend_list:
    _dist.Backend.register_backend("muster", _create, extended_api=True, devices=["cpu"])
_atexit.register(_backend.stop_progress)
_os.register_at_fork(after_in_child=_backend.forget_progress)
