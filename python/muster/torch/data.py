"""muster's loader where PyTorch expects its own."""
import torch
from torch.utils.data import IterableDataset

__all__ = ["loader_dataset"]


class loader_dataset(IterableDataset):
    """The batches of a loader as (values, labels), tensors without a copy: `DataLoader(loader_dataset(loader), batch_size=None)`,
    or a loop over it alone.

    Each iteration is an epoch of the loader. `label_type` is the type of the labels, int64 for classes. Workers of DataLoader
    are refused: the loader has threads of its own.
    """

    def __init__(self, loader, label_type=torch.int64):
        super().__init__()
        self.loader = loader
        self.label_type = label_type

    def __iter__(self):
        if torch.utils.data.get_worker_info() is not None:
            from muster.errors import configuration_error
            raise configuration_error("a loader of muster cannot run in workers of DataLoader (it has threads of its own); pass "
                                      "num_workers=0 and muster.prefetch(4, threads=N)")
        for batch in self.loader:
            yield torch.from_dlpack(batch), torch.from_dlpack(batch.labels).to(self.label_type)

    def __len__(self):
        return len(self.loader)

    def state_dict(self):
        return self.loader.state_dict()

    def load_state_dict(self, state):
        self.loader.load_state_dict(state)
