# The README's program with PyTorch: torchrun --standalone --nproc-per-node 2 --max-restarts 3 ddp.py
import os
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler
from mnist import Mlp, read_mnist
dist.init_process_group("gloo")
data = read_mnist("train-images-idx3-ubyte", "train-labels-idx1-ubyte")
sampler = DistributedSampler(data, seed=1)
loader = DataLoader(data, batch_size=100 // dist.get_world_size(), sampler=sampler, num_workers=1)
model = DistributedDataParallel(Mlp(784, 128, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
first = 0
if os.path.exists("snapshot.pt"):
    saved = torch.load("snapshot.pt")
    model.module.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    first = saved["epoch"]
for epoch in range(first, 5):
    sampler.set_epoch(epoch)
    total = torch.zeros(2)
    for images, labels in loader:
        loss = cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += torch.tensor([loss.item() * len(labels), len(labels)])
    dist.all_reduce(total)
    if dist.get_rank() == 0:
        print(f"epoch {epoch + 1}: loss {total[0] / total[1]:g}, {total[1]:g} samples", flush=True)
        saved = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch + 1}
        torch.save(saved, "snapshot.tmp")
        os.replace("snapshot.tmp", "snapshot.pt")
dist.destroy_process_group()
