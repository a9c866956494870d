"""The training loop against one written out in plain torch; averages of metrics against NumPy's."""

import math
import shutil
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.filling import fill_randomly
from tests.training.recording import Recorder
from vitrine.core.runtime import Runtime
from vitrine.data.batch import Batch
from vitrine.data.config import MixupConfig
from vitrine.data.preprocessing import build_inception_preprocessing
from vitrine.models.registry import build_model
from vitrine.objectives.config import SupervisedConfig
from vitrine.objectives.objective import LossOutput, Objective
from vitrine.objectives.supervised import Supervised
from vitrine.training.config import MachineConfig, OptimConfig
from vitrine.training.ema import WeightEma
from vitrine.training.loop import MetricAverager, Metrics, fit
from vitrine.training.optimizer import build_optimizer
from vitrine.training.parallel import Parallel
from vitrine.training.state import TrainState

PREPROCESSING = build_inception_preprocessing((16, 16))
ALONE = Runtime(torch.device("cpu"))
NUM_STEPS = 5


def build_network(**changes: Any) -> nn.Module:
    settings = {"width": 16, "depth": 2, "num_heads": 2, "mlp_dim": 32, "image_size": 16, "num_classes": 3}
    model = build_model("ViT-Ti/8", **(settings | changes))
    fill_randomly(model)  # a fresh head is zero, and with it all gradients behind it
    return model


def draw_batch(step: int, num_images: int = 8) -> Batch:
    generator = torch.Generator().manual_seed(step)
    images = torch.randint(0, 256, (num_images, 3, 16, 16), dtype=torch.uint8, generator=generator)
    labels = torch.randint(0, 3, (num_images,), generator=generator)
    return Batch(images, labels, torch.arange(num_images), step)


def draw_batches(start: int = 0, num_images: int = 8, objective: Objective | None = None) -> Iterator[Batch]:
    while True:
        batch = draw_batch(start, num_images)
        yield batch if objective is None else objective.add_draws(batch)
        start += 1


def build_state(
    optim: OptimConfig, *, factor: float | None = None, mixing: MixupConfig | None = None, **changes: Any
) -> TrainState:
    objective = Supervised(build_network(**changes), PREPROCESSING, SupervisedConfig(), mixing)
    return TrainState(objective, build_optimizer(objective, optim), None if factor is None else WeightEma(objective, factor))


def run(
    state: TrainState,
    optim: OptimConfig,
    *,
    total_steps: int = NUM_STEPS,
    machine: MachineConfig | None = None,
    runtime: Runtime = ALONE,
    num_images: int = 8,
    callback: Any = None,
) -> list[Metrics]:
    """Train with a callback, by default one that reads the metrics of each step; return what it recorded."""
    machine = MachineConfig() if machine is None else machine
    callback = Recorder() if callback is None else callback
    fit(
        state,
        draw_batches(state.step, num_images, state.objective),
        total_steps=total_steps,
        optim=optim,
        parallel=Parallel(state.objective, machine, runtime),
        runtime=runtime,
        accumulation_steps=machine.accumulation_steps,
        callback=callback,
    )
    return callback.records


def copy_weights(module: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}


def are_equal(weights: dict[str, Tensor], others: dict[str, Tensor]) -> bool:
    return weights.keys() == others.keys() and all(torch.equal(weights[name], others[name]) for name in weights)


def pick(records: list[Metrics], name: str) -> list[float]:
    return [record[name] for record in records]


OPTIM = OptimConfig(learning_rate=0.01, weight_decay=0.1, warmup_steps=2, max_grad_norm=0.5)


class PlainLoop:
    """What `fit` has to do, in plain torch: AdamW, warm-up and cosine, clipping at 0.5, an average."""

    def __init__(self) -> None:
        self.model = build_network().train()
        kernels = {module.weight for module in self.model.modules() if isinstance(module, nn.Linear)}
        rest = [parameter for parameter in self.model.parameters() if parameter not in kernels]
        self.optimizer = torch.optim.AdamW(
            [{"params": rest, "weight_decay": 0.0}, {"params": list(kernels)}], weight_decay=0.1, fused=True
        )
        self.average = copy_weights(self.model)
        self.losses: list[float] = []
        self.norms: list[float] = []
        self.rates: list[float] = []
        for step in range(NUM_STEPS):
            self.run_step(draw_batch(step), step)

    def run_step(self, batch: Batch, step: int) -> None:
        cosine = 0.5 * (1 + math.cos(math.pi * max(0, step - 2) / (NUM_STEPS - 2)))
        self.rates.append(0.01 * min(1, step / 2) * cosine)
        for group in self.optimizer.param_groups:
            group["lr"] = self.rates[-1]
        images = (batch.image.float() / 255 - 0.5) / 0.5
        loss = F.cross_entropy(self.model(images), batch.target, reduction="none").mean()
        loss.backward()
        self.losses.append(loss.item())
        self.norms.append(nn.utils.clip_grad_norm_(self.model.parameters(), 0.5).item())
        self.optimizer.step()
        self.optimizer.zero_grad()
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                self.average[name].lerp_(parameter, 1 - 0.9)


@pytest.fixture(scope="module")
def plain() -> PlainLoop:
    return PlainLoop()


def test_the_loop_equals_a_plain_loop_bit_for_bit(plain: PlainLoop) -> None:
    state = build_state(OPTIM, factor=0.9)
    records = run(state, OPTIM)
    assert state.step == NUM_STEPS
    assert are_equal(state.objective.encoder.state_dict(), plain.model.state_dict())
    assert are_equal({name.removeprefix("encoder."): value for name, value in state.average.values.items()}, plain.average)
    assert pick(records, "loss") == plain.losses
    assert pick(records, "grad_norm") == plain.norms
    assert pick(records, "rate") == pytest.approx(plain.rates, rel=1e-12)
    assert max(plain.norms) > 0.5  # so that something was clipped


def test_reading_metrics_and_averaging_change_no_weight(plain: PlainLoop) -> None:
    state = build_state(OPTIM)
    assert run(state, OPTIM, callback=Recorder(lambda step: False)) == []
    assert are_equal(state.objective.encoder.state_dict(), plain.model.state_dict())


def test_a_stopped_run_continues_as_if_it_had_not_been(plain: PlainLoop) -> None:
    state = build_state(OPTIM, factor=0.9)
    run(state, OPTIM, callback=Recorder(stop_at=3))
    assert state.step == 3
    state.is_stopped = False
    run(state, OPTIM)
    assert are_equal(state.objective.encoder.state_dict(), plain.model.state_dict())
    assert are_equal({name.removeprefix("encoder."): value for name, value in state.average.values.items()}, plain.average)


@pytest.mark.parametrize("num_parts", [2, 3, 4, 8, 100])
def test_accumulated_gradients_equal_those_of_the_whole_batch(num_parts: int, plain: PlainLoop) -> None:
    state = build_state(OPTIM)
    records = run(state, OPTIM, machine=MachineConfig(accumulation_steps=num_parts))  # 3 does not divide 8
    assert pick(records, "loss") == pytest.approx(plain.losses, rel=1e-5)
    assert pick(records, "grad_norm") == pytest.approx(plain.norms, rel=1e-4)  # sums in another order, and of larger numbers


def test_mixup_is_the_same_with_accumulation() -> None:
    losses = []
    for num_parts in (1, 4):
        state = build_state(OPTIM, mixing=MixupConfig(mixup=0.5, cutmix=0.5))
        losses.append(pick(run(state, OPTIM, machine=MachineConfig(accumulation_steps=num_parts)), "loss"))
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)


def test_a_batch_may_be_smaller_than_the_number_of_parts() -> None:
    optim = OptimConfig()
    state = build_state(optim)
    records = run(state, optim, total_steps=1, num_images=1, machine=MachineConfig(accumulation_steps=4))
    assert records[0]["loss"] > 0


def test_gradients_are_clipped_to_the_norm() -> None:
    """With SGD without momentum a step is minus the learning rate times the gradient, so its norm is known."""
    optim = OptimConfig(kind="sgd", learning_rate=0.1, momentum=0.0, weight_decay=0.0, decay="constant", max_grad_norm=None)
    for max_norm in (None, 0.01):
        state = build_state(optim)
        before = copy_weights(state.objective)
        [record] = run(state, OptimConfig(**(vars(optim) | {"max_grad_norm": max_norm})), total_steps=1)
        moved = torch.cat([(now - before[name]).flatten() for name, now in state.objective.state_dict().items()]).norm()
        expected = record["grad_norm"] if max_norm is None else max_norm
        assert moved.item() == pytest.approx(0.1 * expected, rel=1e-3)  # differences of weights have fewer digits
        assert record["grad_norm"] > 0.01


def test_metrics_are_means_of_the_steps_since_they_were_read() -> None:
    losses = pick(run(build_state(OPTIM), OPTIM, total_steps=7), "loss")
    means = pick(run(build_state(OPTIM), OPTIM, total_steps=7, callback=Recorder(lambda step: step in (3, 4, 6))), "loss")
    assert means == pytest.approx([sum(losses[0:3]) / 3, losses[3], sum(losses[4:6]) / 2], rel=1e-6)


def test_the_callback_is_called_after_every_step_with_its_learning_rate(plain: PlainLoop) -> None:
    calls: list[tuple[int, float]] = []

    class Calls(Recorder):
        def after_step(self, state: TrainState, metrics: MetricAverager, lr: float) -> None:
            calls.append((state.step, lr))

    run(build_state(OPTIM), OPTIM, callback=Calls())
    assert [step for step, _ in calls] == [1, 2, 3, 4, 5]
    assert [lr for _, lr in calls] == pytest.approx(plain.rates, rel=1e-12)


def test_the_callback_can_stop_the_run() -> None:
    state = build_state(OPTIM)
    assert len(run(state, OPTIM, callback=Recorder(stop_at=2))) == 2
    assert state.step == 2


def test_random_numbers_drawn_by_the_callback_change_no_weight() -> None:
    class Draws(Recorder):
        def after_step(self, state: TrainState, metrics: MetricAverager, lr: float) -> None:
            torch.rand(17)

    weights = []
    for callback in (Recorder(), Draws()):
        state = build_state(OPTIM, dropout_rate=0.5)
        run(state, OPTIM, callback=callback)
        weights.append(copy_weights(state.objective))
    assert are_equal(*weights)


def test_a_finished_or_stopped_run_does_nothing() -> None:
    for step, is_stopped in ((NUM_STEPS, False), (NUM_STEPS + 1, False), (2, True)):
        state = build_state(OPTIM)
        state.step, state.is_stopped = step, is_stopped
        before = copy_weights(state.objective)
        assert run(state, OPTIM) == []
        assert state.step == step
        assert are_equal(state.objective.state_dict(), before)


def test_no_batch_is_read_in_excess() -> None:
    batches = draw_batches()
    state = build_state(OPTIM)
    fit(
        state,
        batches,
        total_steps=3,
        optim=OPTIM,
        parallel=Parallel(state.objective, MachineConfig(), ALONE),
        runtime=ALONE,
    )
    assert next(batches).step == 3


class Diverging(Objective):
    """An objective whose loss is not finite at one step, in one part of the batch."""

    def __init__(self, bad_step: int, bad_value: float) -> None:
        super().__init__(build_network(), PREPROCESSING)
        self.bad_step, self.bad_value = bad_step, bad_value

    def forward(self, batch: Batch) -> LossOutput:
        is_bad = batch.step == self.bad_step and bool((batch.index == 5).any())
        logits = self.encoder(batch.image.float() / 255)
        return LossOutput(logits.square().mean().nan_to_num() * (self.bad_value if is_bad else 1.0))


@pytest.mark.parametrize("num_parts", [1, 4])
@pytest.mark.parametrize("bad_value", [math.nan, math.inf])
@pytest.mark.parametrize(("bad_step", "noticed"), [(0, 1), (0, 6), (3, 6), (5, 6)])
def test_a_loss_that_is_not_finite_stops_the_run_and_names_its_step(
    bad_step: int, noticed: int, bad_value: float, num_parts: int
) -> None:
    objective = Diverging(bad_step, bad_value)
    state = TrainState(objective, build_optimizer(objective, OPTIM))
    callback = Recorder(lambda step: step % noticed == 0)
    with pytest.raises(FloatingPointError, match=rf"step {bad_step + 1}$"):
        run(state, OPTIM, total_steps=6, callback=callback, machine=MachineConfig(accumulation_steps=num_parts))
    assert callback.records == []
    assert state.step == noticed


def test_a_gradient_that_is_not_finite_stops_the_run_too() -> None:
    class Root(Objective):
        def __init__(self) -> None:
            super().__init__(build_network(), PREPROCESSING)
            self.weight = nn.Parameter(torch.zeros(1))

        def forward(self, batch: Batch) -> LossOutput:
            return LossOutput(self.weight.sqrt().sum())  # 0, with an infinite slope

    objective = Root()
    state, callback = TrainState(objective, build_optimizer(objective, OPTIM)), Recorder()
    with pytest.raises(FloatingPointError, match=r"step 1$"):
        run(state, OPTIM, callback=callback)
    assert callback.records == []


def compute_dropout_loss(seed: int = 0, rank: int = 0, step: int = 0, num_parts: int = 1, spoil: int = 0) -> float:
    """Return the loss of one step with dropout, on images that are all the same."""
    torch.manual_seed(spoil)
    state = build_state(OPTIM, dropout_rate=0.5)
    state.step = step
    same = Batch(torch.full((8, 3, 16, 16), 100, dtype=torch.uint8), torch.zeros(8, dtype=torch.int64), torch.arange(8), step)
    runtime, callback = Runtime(torch.device("cpu"), rank), Recorder()
    torch.rand(spoil)
    fit(
        state,
        iter([same]),
        total_steps=step + 1,
        optim=OptimConfig(),
        parallel=Parallel(state.objective, MachineConfig(), runtime),
        runtime=runtime,
        accumulation_steps=num_parts,
        seed=seed,
        callback=callback,
    )
    return callback.records[0]["loss"]


def test_dropout_is_a_function_of_seed_step_rank_and_part() -> None:
    first = compute_dropout_loss()
    assert compute_dropout_loss(spoil=5) == first
    others = [compute_dropout_loss(seed=1), compute_dropout_loss(step=1), compute_dropout_loss(rank=1)]
    assert len({first, *others}) == 4


def test_every_part_of_a_batch_has_its_own_dropout() -> None:
    class Parts(Objective):
        def __init__(self) -> None:
            super().__init__(build_network(), PREPROCESSING)
            self.weight = nn.Parameter(torch.zeros(1))
            self.drawn: list[Tensor] = []

        def forward(self, batch: Batch) -> LossOutput:
            self.drawn.append(F.dropout(torch.ones(64)))
            return LossOutput(self.weight.sum())

    objective = Parts()
    run(TrainState(objective, build_optimizer(objective, OPTIM)), OPTIM, machine=MachineConfig(accumulation_steps=4))
    assert len({tuple(each.tolist()) for each in objective.drawn}) == 4 * NUM_STEPS


def test_bfloat16_computes_in_it_and_keeps_weights_in_float32(plain: PlainLoop) -> None:
    state = build_state(OPTIM, factor=0.9)
    seen: set[torch.dtype] = set()
    state.objective.encoder.blocks[0].mlp.hidden.register_forward_hook(lambda module, inputs, output: seen.add(output.dtype))
    records = run(state, OPTIM, machine=MachineConfig(precision="bfloat16"))
    assert seen == {torch.bfloat16}
    assert {parameter.dtype for parameter in state.objective.parameters()} == {torch.float32}
    assert pick(records, "loss") == pytest.approx(plain.losses, rel=0.05)  # numbers of 8 bits
    assert pick(records, "loss") != plain.losses


def test_auto_precision_is_float32_on_a_cpu(plain: PlainLoop) -> None:
    state = build_state(OPTIM)
    assert pick(run(state, OPTIM, machine=MachineConfig(precision="auto")), "loss") == plain.losses


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_gradient_checkpointing_gives_the_same_gradients(precision: Any) -> None:
    """Dropout too: the recomputation draws the same numbers."""
    weights = []
    for is_checkpointed in (False, True):
        state = build_state(OPTIM, dropout_rate=0.3, stochastic_depth_rate=0.3, gradient_checkpointing=is_checkpointed)
        num_calls: list[int] = []
        state.objective.encoder.blocks[0].register_forward_pre_hook(lambda *_, calls=num_calls: calls.append(1))
        run(state, OPTIM, machine=MachineConfig(precision=precision))
        assert len(num_calls) == NUM_STEPS * (2 if is_checkpointed else 1)
        weights.append(copy_weights(state.objective))
    assert are_equal(*weights)


@pytest.mark.full
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler on this device")
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # raised within torch's own compiler
def test_a_compiled_model_trains_the_same(plain: PlainLoop) -> None:
    state = build_state(OPTIM)
    names = list(state.objective.state_dict())
    records = run(state, OPTIM, machine=MachineConfig(compile=True))
    assert list(state.objective.state_dict()) == names
    assert pick(records, "loss") == pytest.approx(plain.losses, rel=1e-4)  # the compiler sums in another order


ALONE_METRICS = Runtime(torch.device("cpu"))


def build_meter() -> MetricAverager:
    return MetricAverager(ALONE_METRICS)


def test_means_equal_numpy() -> None:
    values = np.random.default_rng(0).normal(size=50)
    meter = build_meter()
    for value in values:
        meter.add({"loss": torch.tensor(value), "accuracy": torch.tensor(value > 0)})
    assert meter.read() == pytest.approx({"loss": values.mean(), "accuracy": (values > 0).mean()}, rel=1e-6)


def test_parts_of_a_step_are_weighted() -> None:
    values, shares = np.array([1.0, 2.0, 5.0]), np.array([0.5, 0.25, 0.25])
    meter = build_meter()
    for value, share in zip(values, shares, strict=True):
        meter.add({"loss": torch.tensor(value)}, float(share))
    meter.add({"loss": torch.tensor(10.0)})  # a second step, in one part
    assert meter.read()["loss"] == pytest.approx((np.average(values, weights=shares) + 10) / 2)


def test_a_metric_given_at_some_steps_is_averaged_over_these() -> None:
    meter = build_meter()
    for step in range(4):
        meter.add({"loss": torch.tensor(float(step))})
    meter.add({"rare": torch.tensor(7.0)})
    assert meter.read() == {"loss": 1.5, "rare": 7.0}


def test_reading_starts_new_averages() -> None:
    meter = build_meter()
    meter.add({"loss": torch.tensor(1.0), "once": torch.tensor(1.0)})
    meter.read()
    assert meter.read() == {}
    meter.add({"loss": torch.tensor(3.0)})
    assert meter.read() == {"loss": 3.0}


def test_averages_keep_no_autograd_graph() -> None:
    weight = torch.ones((), requires_grad=True)
    meter = build_meter()
    loss = weight * 2
    meter.add({"loss": loss})
    meter.check_finite(loss, 0)
    assert not any(total.requires_grad for total in meter.sums.values())
    assert not meter.first_bad_step.requires_grad
    assert meter.read() == {"loss": 2.0}


def test_half_precision_metrics_are_summed_in_float32() -> None:
    meter = build_meter()
    for _ in range(4096):  # a sum of bfloat16 would stop growing at 256
        meter.add({"loss": torch.tensor(1.0, dtype=torch.bfloat16)})
    assert meter.read() == {"loss": 1.0}


def test_a_metric_may_change_in_place_after_it_was_added() -> None:
    """The next step may reuse the memory of a gradient norm."""
    meter, value = build_meter(), torch.tensor(1.0)
    meter.add({"norm": value})
    value.fill_(100.0)
    assert meter.read() == {"norm": 1.0}


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_the_first_bad_step_is_named_if_it_is_read_later(bad: float) -> None:
    meter = build_meter()
    for step, loss in enumerate([1.0, 2.0, bad, 3.0, math.nan]):
        meter.add({"loss": torch.tensor(loss)})
        meter.check_finite(torch.tensor(loss), step)
    with pytest.raises(FloatingPointError, match=r"step 2$"):
        meter.read()


def test_step_0_can_be_the_bad_one() -> None:
    meter = build_meter()
    meter.check_finite(torch.tensor(math.nan), 0)
    meter.check_finite(torch.tensor(math.nan), 1)
    with pytest.raises(FloatingPointError, match=r"at step 0$"):
        meter.read()


def test_a_bad_step_is_found_after_a_good_reading() -> None:
    meter = build_meter()
    meter.check_finite(torch.tensor(1.0), 0)
    meter.read()
    meter.check_finite(torch.tensor(math.inf), 1)
    with pytest.raises(FloatingPointError, match=r"at step 1$"):
        meter.read()


def test_another_metric_that_is_not_finite_is_named() -> None:
    meter = build_meter()
    meter.add({"loss": torch.tensor(1.0), "grad_norm": torch.tensor(math.inf)})
    meter.check_finite(torch.tensor(1.0), 0)
    with pytest.raises(FloatingPointError, match=r"^grad_norm is inf$"):
        meter.read()
