"""Our own training step as a run makes it, and its last part alone: contestants of train_step.py and compare_speed.py.

The whole step goes through `fit`: normalise, forward pass, loss, backward pass, clipping, our optimizer, EMA, metrics. The last
part is clipping, optimizer and EMA. Only names are used that earlier versions of the package have too.
"""

from collections.abc import Callable, Iterator
from itertools import cycle, repeat
from threading import Semaphore, Thread

import torch
from torch import nn

from measure import Setting, Step
from peers import OURS
from vitrine.core.runtime import Runtime
from vitrine.data.batch import Batch
from vitrine.data.preprocessing import build_inception_preprocessing
from vitrine.models.registry import build_model
from vitrine.objectives.config import SupervisedConfig
from vitrine.objectives.supervised import Supervised
from vitrine.training.config import MachineConfig, OptimConfig
from vitrine.training.ema import WeightEma
from vitrine.training.loop import fit
from vitrine.training.optimizer import build_optimizer, clip_gradients
from vitrine.training.parallel import Parallel
from vitrine.training.state import TrainState

WHOLE, UPDATE = f"{OURS}, fit with EMA", f"{OURS}, clipping, optimizer and EMA"
NUM_BATCHES = 4
# A small learning rate: once these few batches are memorised, gradients would become denormal and slow.
OPTIM = OptimConfig(learning_rate=1e-6, decay="constant", max_grad_norm=1.0)


def build_state(setting: Setting) -> TrainState:
    """Build model, objective, optimizer and EMA of a setting, with random weights everywhere: a zero head has no gradients."""
    network = setting.network
    model = build_model(
        f"ViT-Ti/{network.patch_size}",
        image_size=network.image_size,
        width=network.width,
        depth=network.depth,
        num_heads=network.num_heads,
        mlp_dim=network.mlp_dim,
        num_classes=network.num_classes,
    )
    for parameter in model.parameters():
        if parameter.ndim > 1:
            nn.init.normal_(parameter, std=0.02)
    objective = Supervised(model, build_inception_preprocessing((network.image_size, network.image_size)), SupervisedConfig())
    return TrainState(objective, build_optimizer(objective, OPTIM), WeightEma(objective, 0.9999))


def step_through(train: Callable[[Iterator[Batch]], object], batches: Iterator[Batch]) -> Step:
    """Return a function that lets a training loop, which runs in a thread, make one step."""
    wanted, made = Semaphore(0), Semaphore(0)

    def give() -> Iterator[Batch]:
        """Yield a batch for each step that is wanted; the next request says that the step is made."""
        for _ in repeat(None):
            wanted.acquire()
            yield next(batches)
            made.release()

    def step() -> None:
        wanted.release()
        made.acquire()

    Thread(target=train, args=(give(),), daemon=True).start()
    return step


def build_whole_step(setting: Setting) -> Step:
    """Return a function that makes one step of `fit` with the network of a setting."""
    side, size = setting.network.image_size, setting.batch_size
    drawn = [
        Batch(
            image=torch.randint(256, (size, 3, side, side), dtype=torch.uint8),
            target=torch.randint(setting.network.num_classes, (size,)),
            index=torch.arange(size),
            step=step,
        )
        for step in range(NUM_BATCHES)
    ]

    def train(batches: Iterator[Batch]) -> None:
        state, runtime = build_state(setting), Runtime(torch.device("cpu"))
        parallel = Parallel(state.objective, MachineConfig(precision="float32"), runtime)
        fit(state, batches, total_steps=10**9, optim=OPTIM, parallel=parallel, runtime=runtime)

    return step_through(train, cycle(drawn))


def build_update_step(setting: Setting) -> Step:
    """Return a function that clips made-up gradients, steps the optimizer and updates the average."""
    state = build_state(setting)
    for parameter in state.objective.parameters():
        parameter.grad = torch.randn_like(parameter)

    def step() -> None:
        clip_gradients(state.objective, OPTIM.max_grad_norm)
        state.optimizer.step()
        if state.average is not None:
            state.average.update()

    return step
