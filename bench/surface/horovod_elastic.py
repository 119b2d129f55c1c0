# The README's program with Horovod: horovodrun -np 2 --min-np 1 --host-discovery-script hosts.sh python horovod_elastic.py
import os
import torch
import horovod.torch as hvd
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader
from mnist import Mlp, read_mnist
hvd.init()
data = read_mnist("train-images-idx3-ubyte", "train-labels-idx1-ubyte")
sampler = hvd.elastic.ElasticSampler(data, seed=1)
model = Mlp(784, 128, 10)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
state = hvd.elastic.TorchState(model=model, optimizer=optimizer, sampler=sampler, epoch=0)
if os.path.exists("snapshot.pt"):
    saved = torch.load("snapshot.pt")
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    state.epoch = saved["epoch"]
@hvd.elastic.run
def train(state):
    while state.epoch < 5:
        loader = DataLoader(data, batch_size=100 // hvd.size(), sampler=sampler, num_workers=1)
        total = torch.zeros(2)
        for index, (images, labels) in enumerate(loader):
            loss = cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += torch.tensor([loss.item() * len(labels), len(labels)])
            sampler.record_batch(index, 100 // hvd.size())
            state.commit()
        total = hvd.allreduce(total, op=hvd.Sum)
        state.epoch += 1
        sampler.set_epoch(state.epoch)
        state.commit()
        if hvd.rank() == 0:
            print(f"epoch {state.epoch}: loss {total[0] / total[1]:g}, {total[1]:g} samples", flush=True)
            saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": state.epoch}
            torch.save(saved, "snapshot.tmp")
            os.replace("snapshot.tmp", "snapshot.pt")
train(state)
