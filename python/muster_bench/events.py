"""Event files for TensorBoard, one folder for each run, written by tensorboardX."""
import pathlib

from .errors import Refusal
from .files import remove_tree, writing

SCALARS = ("train_loss", "val_loss", "val_accuracy", "train_accuracy", "samples_per_second")


def load_writer():
    try:
        from tensorboardX import SummaryWriter
    except ImportError as error:
        raise Refusal(f"event files need tensorboardX (this Python cannot import {error.name}); pip install 'muster-bench[tensorboard]' in a venv") from None
    return SummaryWriter


def write(folder, run, result):
    """Writes a run's results epoch by epoch, each with its end time. Replaces earlier event files of the run."""
    to = pathlib.Path(folder) / run.id
    remove_tree(to)
    with writing(to), load_writer()(logdir=str(to)) as writer:
        for number, epoch in enumerate(result["series"], 1):
            for name in SCALARS:
                if name in epoch:
                    writer.add_scalar(name, epoch[name], int(epoch.get("epoch", number)), walltime=result["began"] + epoch.get("seconds", 0.0))
