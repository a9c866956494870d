"""Single operations on the fake device, each with the faults that it must record: the fake device's own test."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from tests.devices.fake_device import NAME, FakeDevice, FaultKind


class Probe(NamedTuple):
    """An operation on a tensor (3, 3) of the device, and the kinds of its faults."""

    run: Callable[[Tensor], object]
    kinds: tuple[FaultKind, ...] = ()

    def __call__(self, device: FakeDevice) -> None:
        tensor = torch.arange(9.0).view(3, 3).to(NAME)
        with device.without_waits():
            self.run(tensor)


def fill_by_mask(x: Tensor) -> None:
    x[x > 1] = 0


def run_backward(x: Tensor) -> None:
    x.requires_grad_().square().sum().backward()
    assert x.grad is not None
    assert x.grad.device.type == NAME


PROBES: dict[str, Probe] = {
    "arithmetic": Probe(lambda x: (x @ x + 1).softmax(dim=0).mean()),
    "a number on the CPU": Probe(lambda x: x * torch.tensor(2.0)),
    "new tensors": Probe(lambda x: (torch.zeros(2, device=NAME), x.new_zeros(2), torch.arange(3, device=x.device))),
    "float64 on the CPU": Probe(lambda x: torch.zeros(3).double() + 1),
    "fill by a mask": Probe(fill_by_mask),
    "index on the device": Probe(lambda x: x[torch.arange(2, device=NAME)]),
    "backward": Probe(run_backward),
    "pinned copy": Probe(lambda x: torch.zeros(3).pin_memory().to(NAME, non_blocking=True)),
    "part of pinned memory": Probe(lambda x: torch.zeros(3).pin_memory()[1:].to(NAME, non_blocking=True)),
    "double": Probe(lambda x: x.double(), ("float64",)),
    "new float64": Probe(lambda x: torch.zeros(2, dtype=torch.float64, device=NAME), ("float64",)),
    "sum with a tensor on the CPU": Probe(lambda x: x + torch.zeros(3), ("mix",)),
    "cat with a tensor on the CPU": Probe(lambda x: torch.cat([x, torch.zeros(1, 3)]), ("mix",)),
    "stack with a number on the CPU": Probe(lambda x: torch.stack([x[0, 0], torch.tensor(1.0)]), ("mix",)),
    "gather by an index on the CPU": Probe(lambda x: x.gather(0, torch.zeros(1, 3, dtype=torch.int64)), ("mix",)),
    "copy not waited for": Probe(lambda x: torch.zeros(3).to(NAME, non_blocking=True), ("memory",)),
    "copy to the CPU not waited for": Probe(lambda x: x.to("cpu", non_blocking=True), ("memory",)),
    "decomposition": Probe(lambda x: torch.linalg.svd(x), ("missing",)),
    "blocking copy": Probe(lambda x: torch.zeros(3).to(NAME), ("wait",)),
    "blocking copy of pinned memory": Probe(lambda x: torch.zeros(3).pin_memory().to(NAME), ("wait",)),
    "copy in place": Probe(lambda x: x.copy_(torch.zeros(3, 3)), ("wait",)),
    "cpu": Probe(lambda x: x.cpu(), ("wait",)),
    "item": Probe(lambda x: x[0, 0].item(), ("wait",)),
    "tolist": Probe(lambda x: x.tolist(), ("wait",)),
    "truth": Probe(lambda x: bool(x.any()), ("wait",)),
    "one_hot": Probe(lambda x: torch.nn.functional.one_hot(x.long()), ("wait",)),
    "nonzero": Probe(lambda x: x.nonzero(), ("wait",)),
    "index by a mask": Probe(lambda x: x[x > 1], ("wait",)),
    "index by a list": Probe(lambda x: x[[0, 2]], ("wait",)),
    "index on the CPU": Probe(lambda x: x[torch.arange(2)], ("wait",)),
    "Python numbers": Probe(lambda x: torch.tensor([1.0, 2.0], device=NAME), ("wait",)),
    "numpy": Probe(lambda x: x.numpy(), ("error",)),
}
