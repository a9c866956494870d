"""Deliberately broken functions: each has a fault that a GPU would meet, and names the cases that find it.

A break replaces one function of the package inside the process of the fake device. It proves that the cases it names can fail.
"""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from tests.devices.cases import NETWORKS
from tests.devices.fake_device import NAME, FaultKind
from vitrine.data import batch
from vitrine.data.augment import mixup
from vitrine.data.batch import Batch
from vitrine.data.preprocessing import Preprocessing
from vitrine.engines.engine import TorchEngine
from vitrine.evaluation import evaluators, features, topk
from vitrine.evaluation.evaluators import EVALUATORS
from vitrine.inspection import attention, distance, filters, inspect_model, patch_features, positions, rollout
from vitrine.inspection.distance import DistanceMeter
from vitrine.models import positions as model_positions
from vitrine.models.attention import ProbeAttention
from vitrine.models.axial import AxialAttention
from vitrine.models.blocks import ResidualBranch, SwiGlu
from vitrine.models.heads import HiddenHead
from vitrine.models.model import Model
from vitrine.models.positions import AddedPositions, Learned2d, RelativePositions, SinCos2d
from vitrine.models.resnet import StandardisedConv
from vitrine.models.vit import VisionTransformer
from vitrine.objectives import supervised
from vitrine.objectives.masked_patches import ColourTarget, MaskedPatches, PixelTarget
from vitrine.objectives.objective import Objective
from vitrine.training import loop, state
from vitrine.training.ema import WeightEma
from vitrine.training.loop import MetricAverager
from vitrine.training.parallel import Parallel


@dataclass(frozen=True)
class Break:
    """A broken function in place of one of the package, and what finds it."""

    owner: Any
    """Module, class or table."""
    name: str
    build: Callable[[Callable[..., Any]], Callable[..., Any]]
    """Makes the broken function from the right one."""
    kind: FaultKind
    cases: tuple[str, ...]
    """All cases of the group that fail; a name that ends with * stands for all that begin so."""

    def apply(self) -> Any:
        """Return a context in which the function is broken."""
        if isinstance(self.owner, dict):
            return patch.dict(self.owner, {self.name: self.build(self.owner[self.name])})
        return patch.object(self.owner, self.name, self.build(getattr(self.owner, self.name)))


def in_double(right: Callable[..., Tensor]) -> Callable[..., Any]:
    """Return its result by way of float64."""
    return lambda *args, **kwargs: right(*args, **kwargs).double().float()


def on_cpu(right: Callable[..., Tensor]) -> Callable[..., Any]:
    """Leave its result on the CPU."""
    return lambda *args, **kwargs: right(*args, **kwargs).cpu()


def with_read(right: Callable[..., Any]) -> Callable[..., Any]:
    """Read a number from the device first."""

    def read(*args: Any, **kwargs: Any) -> Any:
        read_number()
        return right(*args, **kwargs)

    return read


def with_double(right: Callable[..., Any]) -> Callable[..., Any]:
    """Compute in float64 on the device of the first tensor, or of the model."""

    def compute(*args: Any, **kwargs: Any) -> Any:
        tensors = [each for each in args if isinstance(each, Tensor)]
        tensors += [parameter for each in args if isinstance(each, torch.nn.Module) for parameter in each.parameters()]
        tensors[0].detach().double()
        return right(*args, **kwargs)

    return compute


def read_number() -> None:
    torch.zeros((), device=NAME).item()


def keep_targets(right: Callable[..., Batch]) -> Callable[..., Any]:
    return lambda batch, device: replace(right(batch, device), target=batch.target)


def copy_without_waiting(right: Callable[..., Tensor]) -> Callable[..., Any]:
    return lambda tensor, device: tensor.to(device, non_blocking=True)


def copy_and_wait(right: Callable[..., Tensor]) -> Callable[..., Any]:
    return lambda tensor, device: tensor.to(device)


def check_values(right: Callable[..., None]) -> Callable[..., Any]:
    """Check images for NaN, which has to read the result."""

    def check(model: Model[Any], images: Tensor) -> None:
        assert images.isfinite().all()
        right(model, images)

    return check


def skip_by_number(right: Callable[..., Tensor]) -> Callable[..., Any]:
    """Skip a branch by an `if` on the host."""

    def forward(branch: ResidualBranch, x: Tensor) -> Tensor:
        if branch.training and branch.skip_rate > 0 and torch.rand((), device=x.device) < 0:
            return torch.zeros_like(x)
        return right(branch, x)

    return forward


def index_on_cpu(right: Callable[..., Tensor]) -> Callable[..., Any]:
    return lambda self, tokens, indices=None: right(self, tokens, None if indices is None else indices.cpu())


def read_each_metric(right: Callable[..., None]) -> Callable[..., Any]:
    """Sum metrics as Python numbers."""

    def add(averager: MetricAverager, values: dict[str, Tensor], weight: float = 1.0) -> None:
        assert all(value.item() < 1e9 for value in values.values())
        right(averager, values, weight)

    return add


def read_each_prediction(right: Callable[..., Tensor]) -> Callable[..., Any]:
    """Read the hits of each batch."""

    def count(*args: Any) -> Tensor:
        keep = args[3] if len(args) > 3 else lambda predicted: None
        return right(*args[:3], lambda predicted: (predicted.hits.sum().item(), keep(predicted)))

    return count


def join_on_cpu(right: Callable[..., topk.TopK]) -> Callable[..., Any]:
    """Read every column of every batch by itself."""
    return lambda parts: right([topk.TopK(**{name: value.cpu() for name, value in vars(each).items()}) for each in parts])


def read_each_batch(right: evaluators.Evaluator) -> Any:
    """Read a number with each batch."""

    def measure(setup: evaluators.EvaluationSetup) -> dict[str, float]:
        def read(source: Any) -> Any:
            for each in setup.read(source):
                read_number()
                yield each

        return right.measure(replace(setup, read=read))

    return replace(right, measure=measure)


def sum_in_double(right: Callable[..., None]) -> Callable[..., Any]:
    def add(meter: distance.DistanceMeter, layer: int, maps: Tensor) -> None:
        maps.double().sum()
        right(meter, layer, maps)

    return add


def decompose_on_device(right: Callable[..., Any]) -> Callable[..., Any]:
    def compute(model: Model[Any], *args: Any) -> Any:
        torch.linalg.svd(next(model.parameters()).detach().flatten(1))
        return right(model, *args)

    return compute


def add_identity_on_cpu(right: Callable[..., Tensor]) -> Callable[..., Any]:
    def fuse(maps: Tensor, config: Any) -> Tensor:
        fused = right(maps, config)
        return fused + 0 * torch.eye(fused.shape[-1])

    return fuse


ADDED_POSITIONS = ("class token", "two-dimensional", "sin-cos", "positions in every layer")
SUPERVISED = (
    *("softmax", "label smoothing", "sigmoid", "several labels", "mixup", "cutmix", "dropout"),
    *("sgd", "no clipping", "layer decay", "accumulation", "bfloat16", "saving"),
)
MASKED = ("masked mean-colour", "masked small-colours", "masked pixels")

BREAKS: dict[str, dict[str, Break]] = {
    "networks": {
        "images are checked for NaN": Break(Model, "check_images", check_values, "wait", (*NETWORKS, "dropped patches")),
        "sines on the CPU": Break(SinCos2d, "compute_table", on_cpu, "mix", ("sin-cos", "resized: sin-cos")),
        "tables of two axes on the CPU": Break(
            Learned2d, "compute_table", on_cpu, "mix", ("two-dimensional", "resized: two-dimensional")
        ),
        "offsets on the CPU": Break(RelativePositions, "compute_index", on_cpu, "mix", ("relative", "resized: relative")),
        "positions by indices on the CPU": Break(AddedPositions, "forward", index_on_cpu, "wait", ("dropped patches",)),
        "positions resized in float64": Break(
            model_positions, "resize_positions", in_double, "float64", ("resized: class token",)
        ),
        "kernels in float64": Break(StandardisedConv, "standardise", in_double, "float64", ("hybrid", "resnet")),
        "depth by a number": Break(ResidualBranch, "forward", skip_by_number, "wait", ("dropout",)),
        "hidden head in float64": Break(HiddenHead, "forward", in_double, "float64", ("hidden head",)),
        "probe in float64": Break(ProbeAttention, "forward", in_double, "float64", ("attention pool",)),
        "gate in float64": Break(SwiGlu, "forward", in_double, "float64", ("swiglu",)),
        "layers read in float64": Break(VisionTransformer, "read_layer", in_double, "float64", ("readout of layers",)),
        "rows and columns in float64": Break(AxialAttention, "forward", in_double, "float64", ("axial",)),
    },
    "training": {
        "targets on the CPU": Break(Batch, "to", keep_targets, "mix", (*SUPERVISED, "memory not pinned")),
        "copies are never waited for": Break(batch, "copy_to_device", copy_without_waiting, "memory", ("memory not pinned",)),
        "copies are always waited for": Break(batch, "copy_to_device", copy_and_wait, "wait", (*SUPERVISED, *MASKED)),
        "images normalised in float64": Break(
            Preprocessing, "normalise", in_double, "float64", (*SUPERVISED, *MASKED, "memory not pinned")
        ),
        "metrics are read": Break(MetricAverager, "add", read_each_metric, "wait", (*SUPERVISED, *MASKED)),
        "the norm is read": Break(loop, "clip_gradients", with_read, "wait", (*SUPERVISED, *MASKED)),
        "the average is read": Break(WeightEma, "update", with_read, "wait", (*SUPERVISED, *MASKED)),
        "classes are checked": Break(supervised, "one_hot_targets", with_read, "wait", ("sigmoid", "several labels")),
        "partners in float64": Break(mixup, "select_partners", in_double, "float64", ("mixup", "cutmix")),
        "colours on the CPU": Break(ColourTarget, "compute", on_cpu, "mix", MASKED[:2]),
        "pixels in float64": Break(PixelTarget, "compute", in_double, "float64", MASKED[2:]),
        "float32 in place of bfloat16": Break(
            Parallel, "computing", lambda right: lambda parallel: nullcontext(), "result", ("bfloat16",)
        ),
        "weights saved on the device": Break(
            state, "gather_weights", lambda right: lambda objective: objective.state_dict(), "result", ("saving",)
        ),
    },
    "runs": {
        "features in float64": Break(Objective, "features", in_double, "float64", ("*",)),
        "features of a checkpoint in float64": Break(TorchEngine, "features", in_double, "float64", ("run from a checkpoint",)),
    },
    "evaluation": {
        "labels on the CPU": Break(
            topk,
            "match_labels",
            lambda right: lambda classes, targets: right(classes, targets.cpu()),
            "mix",
            ("predict batch*", "count hits", "predict batches", "top1", "classify images", "predictor"),
        ),
        "each batch is read": Break(
            topk,
            "predict_batch",
            with_read,
            "wait",
            ("predict batch*", "count hits", "predict batches", "top1", "classify images"),
        ),
        "hits are read": Break(topk, "count_hits", read_each_prediction, "wait", ("count hits",)),
        "predictions are joined on the CPU": Break(topk, "join_topk", join_on_cpu, "wait", ("predict batches",)),
        "predictions of a run are joined on the CPU": Break(evaluators, "join_topk", join_on_cpu, "wait", ("classify images",)),
        "top-1 is read": Break(EVALUATORS, "top1", read_each_batch, "wait", ("top1",)),
        "the loss is read": Break(EVALUATORS, "objective", read_each_batch, "wait", ("objective", "objective, masked")),
        "features are read twice": Break(Objective, "features", with_read, "wait", ("few-shot", "extract features*")),
        "copies are never waited for": Break(
            features, "copy_to_device", copy_without_waiting, "memory", ("extract features, memory not pinned",)
        ),
        "images normalised in float64": Break(Preprocessing, "normalise", in_double, "float64", ("*",)),
        "logits after a read": Break(TorchEngine, "logits", with_read, "wait", ("engine logits",)),
        "features after a read": Break(TorchEngine, "features", with_read, "wait", ("engine features",)),
    },
    "inspection": {
        "filters in float64": Break(filters, "compute_filters", with_double, "float64", ("filters", "filters of a hybrid")),
        "filters decomposed on the device": Break(
            inspect_model, "compute_filters", decompose_on_device, "missing", ("inspect*",)
        ),
        "positions in float64": Break(
            positions,
            "compare_added",
            with_double,
            "float64",
            (*(f"positions: {kind}" for kind in ADDED_POSITIONS), "inspect: class token"),
        ),
        "offsets in float64": Break(positions, "compare_offsets", with_double, "float64", ("positions: relative",)),
        "distances in float64": Break(DistanceMeter, "add", sum_in_double, "float64", ("distances", "inspect: class token")),
        "identity on the CPU": Break(rollout, "fuse_heads", add_identity_on_cpu, "mix", ("rollout*", "inspect: class token")),
        "maps in float64": Break(attention, "read_query", with_double, "float64", ("attention",)),
        "features decomposed in float64": Break(
            patch_features, "summarise_patches", with_double, "float64", ("patch features*",)
        ),
        "predictions in float64": Break(TorchEngine, "logits", in_double, "float64", ("inspect*",)),
        "targets in float64": Break(MaskedPatches, "compute_targets", with_double, "float64", ("masked patches*",)),
    },
}
