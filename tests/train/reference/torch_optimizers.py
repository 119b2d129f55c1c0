#!/usr/bin/python3
"""Prints the results of PyTorch's optimizers and schedules for a few numbers, in double precision: the reference of
tests/train/optimizers/optimizer.cpp and tests/train/optimizers/schedule.cpp. Run once and stored (PyTorch 1.13, Debian's python3-torch):

    /usr/bin/python3 tests/train/reference/torch_optimizers.py > tests/train/reference/torch_optimizers.txt

Parameter i begins as (i - 2.5) / 2, its gradient in step t is ((7 i + 13 t) mod 11 - 5) / 4, and the rate is 0.1.
"""
import torch

SIZE, STEPS = 6, 7
OPTIMIZERS = [
    ("sgd", lambda p: torch.optim.SGD(p, 0.1)),
    ("sgd,decay=0.05", lambda p: torch.optim.SGD(p, 0.1, weight_decay=0.05)),
    ("momentum:0.9", lambda p: torch.optim.SGD(p, 0.1, momentum=0.9)),
    ("nesterov:0.9,decay=0.05", lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, nesterov=True, weight_decay=0.05)),
    ("adam", lambda p: torch.optim.Adam(p, 0.1)),
    ("adam,decay=0.05,beta1=0.8,beta2=0.9", lambda p: torch.optim.Adam(p, 0.1, (0.8, 0.9), weight_decay=0.05)),
    ("adamw,decay=0.05", lambda p: torch.optim.AdamW(p, 0.1, weight_decay=0.05)),
    ("adamw,decay=0.05,epsilon=0.5", lambda p: torch.optim.AdamW(p, 0.1, eps=0.5, weight_decay=0.05)),
    ("adagrad,decay=0.05", lambda p: torch.optim.Adagrad(p, 0.1, weight_decay=0.05)),
]
METRICS = [5.0, 4.0, 4.0, 4.0, 4.0, 3.9, 3.9, 3.9999, 3.9, 3.9, 3.9, 3.9, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0]
schedulers = torch.optim.lr_scheduler
SCHEDULES = [
    ("step:0.1,epochs=3+7,factor=0.2", lambda o: schedulers.MultiStepLR(o, [3, 7], 0.2)),
    ("cosine:0.1,epochs=10,last=0.01", lambda o: schedulers.CosineAnnealingLR(o, 10, 0.01)),
    ("polynomial:0.1,epochs=10,power=2", lambda o: schedulers.PolynomialLR(o, 10, 2.0)),
    ("exponential:0.1,factor=0.9", lambda o: schedulers.ExponentialLR(o, 0.9)),
    ("constant:0.1,warmup=4,from=0.25", lambda o: schedulers.LinearLR(o, 0.25, 1.0, 4)),
    ("plateau:0.1,factor=0.5,patience=2", lambda o: schedulers.ReduceLROnPlateau(o, factor=0.5, patience=2)),
    ("plateau:0.1,factor=0.1,patience=1,cooldown=2,smallest=0.005,threshold=0.2",
     lambda o: schedulers.ReduceLROnPlateau(o, factor=0.1, patience=1, cooldown=2, min_lr=0.005, threshold=0.2)),
    ("plateau:0.1,factor=0.5,patience=3,better=higher",
     lambda o: schedulers.ReduceLROnPlateau(o, mode="max", factor=0.5, patience=3)),
]


def show(name, numbers):
    print(name, *(f"{number:.17g}" for number in numbers))


for name, make in OPTIMIZERS:
    parameters = torch.nn.Parameter(torch.tensor([(i - 2.5) / 2 for i in range(SIZE)], dtype=torch.float64))
    optimizer = make([parameters])
    for step in range(STEPS):
        gradients = [((7 * i + 13 * step) % 11 - 5) / 4 for i in range(SIZE)]
        parameters.grad = torch.tensor(gradients, dtype=torch.float64)
        optimizer.step()
    show(name, parameters.tolist())
for name, make in SCHEDULES:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], 0.1)
    schedule = make(optimizer)
    rates = []
    for metric in METRICS:
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step(metric) if name.startswith("plateau") else schedule.step()
    # CosineAnnealingLR rises again after its end.
    show(name, rates[:11] if name.startswith("cosine") else rates)
