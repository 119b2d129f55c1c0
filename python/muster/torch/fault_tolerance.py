"""The backend "muster" under torchft: `Manager(pg=ProcessGroupMuster(timeout=...), ...)`."""
import torch
from torch.distributed import ProcessGroup
from torchft.process_group import ProcessGroupWrapper

from . import _backend

__all__ = ["ProcessGroupMuster"]


class ProcessGroupMuster(ProcessGroupWrapper):
    """A process group of torchft over muster: each quorum connects its members anew, through shared memory on one host."""

    def _create_pg(self, store, rank, world_size):
        group = ProcessGroup(store, rank, world_size)
        group._set_default_backend(ProcessGroup.BackendType.CUSTOM)
        backend = _backend.create(store, rank, world_size, self._timeout)
        group._register_backend(torch.device("cpu"), ProcessGroup.BackendType.CUSTOM, backend)
        return group

    def getBackendName(self):
        return "torchft-muster"
