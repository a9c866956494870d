"""A GPU that is not there: tensors that say they are on a device and compute on the CPU, and a record of what would go wrong.

The device is torch's type `lazy`, which has no kernels unless its own backend is started, and whose backward passes run in the
calling thread. (Backends in Python, torch's PrivateUse1, start a thread for backward passes, and some runs abort in it.)
`FakeDevice.register` changes torch for the whole process: use it in a process of its own.

Inside `with FakeDevice() as device`, `torch.zeros(3, device=NAME)` and `model.to(NAME)` make a `DeviceTensor`, which holds a
CPU tensor. Each operation is looked at, then computed with the CPU tensors, backward passes and fused optimizers included.
So results can be compared with those of the CPU. Recorded are, with the function of our package that caused them,

- `float64`: double precision on the device, which Apple's does not have;
- `mix`: operations with tensors on the device and on the CPU, which fail;
- `memory`: copies without waiting that do not start in pinned memory, or end on the CPU: they may use wrong values;
- `missing`: decompositions that Apple's devices do not have;
- `wait`: the host waits for the device, to read a number or to copy; only inside `without_waits`.

Autocast is imitated: the usual products are lowered, norms and losses are not.
Not seen: what a kernel does, its speed, memory and precision; compiled models; several processes.
"""

import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import vitrine

NAME = "lazy"
DISPATCH_KEY = "Lazy"
PACKAGE = str(Path(vitrine.__file__).parent)
FaultKind = Literal["float64", "mix", "memory", "missing", "wait", "error", "result"]

DOUBLE = (torch.float64, torch.complex128)
COPIES = ("_to_copy", "copy_")
JOINS = ("cat", "stack")
INDEXING = ("index", "index_put", "index_put_")
# Operations whose result's size, or Python number, depends on values: the host has to wait for them.
READS = ("_local_scalar_dense", "equal", "nonzero", "masked_select", "bincount", "_unique2", "unique_dim", "unique_consecutive")
MISSING = ("_linalg_svd", "_linalg_eigh", "linalg_qr", "linalg_lstsq", "linalg_eig")


class NoFakeDevice(Exception):
    """This version of torch does not have the private functions that the fake device needs."""


@dataclass(frozen=True)
class Fault:
    """Something that would fail or be slow on a GPU."""

    kind: FaultKind
    what: str
    """The operation, or the error."""
    where: str
    """File and function of our package; empty where there is none, e.g. in a backward pass."""


class DeviceTensor(Tensor):
    """A tensor on the fake device; its values are in `content`, on the CPU."""

    content: Tensor
    device_of_all: ClassVar["FakeDevice | None"] = None
    __torch_function__ = torch._C._disabled_torch_function_impl  # pyright: ignore[reportAssignmentType]

    @staticmethod
    def __new__(cls: type[Self], values: Tensor) -> Self:
        strides, offset = values.stride(), values.storage_offset()
        tensor = Tensor._make_wrapper_subclass(
            cls, values.shape, strides=strides, storage_offset=offset, dtype=values.dtype, device=torch.device(NAME, 0)
        )
        tensor.content = values
        return tensor

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert cls.device_of_all is not None
        return cls.device_of_all.compute(func, args, kwargs or {})

    def __repr__(self, **options: Any) -> str:
        return f"DeviceTensor({self.content!r})"

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def numpy(self, **options: Any) -> Any:
        raise TypeError(f"can't convert {NAME} device type tensor to numpy")


class FakeDevice(TorchDispatchMode):
    """Computes what is on the fake device, and records faults."""

    kernels: ClassVar[torch.library.Library | None] = None

    def __init__(self, case: str = "") -> None:
        super().__init__()
        self.case = case
        self.faults: list[Fault] = []
        self.num_waits = 0
        self.may_wait = True
        self.pinned: list[Tensor] = []
        """Kept, so that no other tensor gets their memory."""
        DeviceTensor.device_of_all = self

    @staticmethod
    def register() -> None:
        """Prepare torch for the device, for the whole process; raise NoFakeDevice where torch is too different."""
        try:
            FakeDevice.kernels = register_kernels()
            prefer_gpu_kernels()
            torch.autocast = build_autocast  # pyright: ignore[reportAttributeAccessIssue]
            with FakeDevice():
                torch.tensor([2.0], device=NAME, requires_grad=True).square().sum().backward()
        except (ImportError, AttributeError, NotImplementedError, RuntimeError, TypeError) as error:
            raise NoFakeDevice(f"torch {torch.__version__} lacks what the fake device needs: {error}") from error

    @contextmanager
    def without_waits(self) -> Iterator[None]:
        """Record every wait inside the block as a fault."""
        with self.set_may_wait(False):
            yield

    @contextmanager
    def with_waits(self) -> Iterator[None]:
        """Allow waits inside the block, e.g. where a callback reads metrics."""
        with self.set_may_wait(True):
            yield

    @contextmanager
    def set_may_wait(self, may_wait: bool) -> Iterator[None]:
        before, self.may_wait = self.may_wait, may_wait
        try:
            yield
        finally:
            self.may_wait = before

    def count_waits(self, function: Callable[[], object]) -> int:
        """Return how often the host waits for the device in a call of a function."""
        before = self.num_waits
        function()
        return self.num_waits - before

    def record(self, kind: FaultKind, what: str) -> None:
        self.faults.append(Fault(kind, what, find_caller()))

    def record_error(self, error: Exception) -> None:
        place = traceback.extract_tb(error.__traceback__)[-1]
        what = f"{type(error).__name__}: {error}".splitlines()[0]
        self.faults.append(Fault("error", what, f"{Path(place.filename).name}:{place.name}"))

    def record_wait(self, what: str) -> None:
        self.num_waits += 1
        if not self.may_wait:
            self.record("wait", what)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.compute(func, args, kwargs or {})

    def compute(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Compute one operation with the tensors' values; the result is on the device where that of a GPU would be."""
        name = func.overloadpacket.__name__
        given = [*list_tensors(args), *list_tensors(kwargs.values())]
        if name == "is_pinned":
            return self.is_pinned(given[0])
        if name == "_pin_memory":
            self.pinned.append(given[0].clone())
            return self.pinned[-1]
        on_device = {id(tensor.content): tensor for tensor in given if isinstance(tensor, DeviceTensor)}
        is_on_device = self.is_result_on_device(name, kwargs, given)
        if not on_device and not is_on_device:
            return func(*args, **kwargs)
        self.check(name, args, kwargs, given, is_on_device)
        if kwargs.get("device") is not None:
            kwargs = kwargs | {"device": torch.device("cpu")}
        results = func(
            *map_tensors(args, get_content), **dict(zip(kwargs, map_tensors(kwargs.values(), get_content), strict=True))
        )
        if not is_on_device:
            return results

        def put_on_device(tensor: Tensor) -> Tensor:
            if tensor.dtype in DOUBLE:
                self.record("float64", name)
            return on_device[id(tensor)] if id(tensor) in on_device else DeviceTensor(tensor)  # in place: the one given

        return map_tensors([results], put_on_device)[0]

    def is_result_on_device(self, name: str, kwargs: dict[str, Any], given: list[Tensor]) -> bool:
        """Return whether the results of an operation are on the device."""
        if kwargs.get("device") is not None:
            return torch.device(kwargs["device"]).type == NAME
        decisive = given[:1] if name in COPIES else given
        return name != "_local_scalar_dense" and any(isinstance(tensor, DeviceTensor) for tensor in decisive)

    def check(
        self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], given: list[Tensor], is_result_on_device: bool
    ) -> None:
        """Record what a GPU would not do, or would make the host wait for."""
        on_device = [tensor for tensor in given if isinstance(tensor, DeviceTensor)]
        on_cpu = [tensor for tensor in given if not isinstance(tensor, DeviceTensor)]
        if name in COPIES:
            source = given[-1]
            if isinstance(source, DeviceTensor) != is_result_on_device:
                is_non_blocking = kwargs.get("non_blocking", False) or (name == "copy_" and len(args) > 2 and args[2])
                self.check_copy(source, is_non_blocking)
            return
        if not on_device:
            return
        if name in READS:
            self.record_wait(name)
        if name in MISSING:
            self.record("missing", name)
        if name in INDEXING:
            self.check_indices(name, [index for index in args[1] if index is not None], args)
            on_cpu = [tensor for tensor in on_cpu if not any(tensor is index for index in args[1])]
        if any(tensor.ndim > 0 or name in JOINS for tensor in on_cpu):  # in most operations a number may be on the CPU
            self.record("mix", name)

    def check_copy(self, source: Tensor, is_non_blocking: bool) -> None:
        """Record a copy between host and device that is wrong, or that the host waits for."""
        direction = "to the CPU" if isinstance(source, DeviceTensor) else "to the device"
        if is_non_blocking and (isinstance(source, DeviceTensor) or not self.is_pinned(source)):
            self.record("memory", f"copy {direction} that is not waited for")
        elif not is_non_blocking:
            self.record_wait(f"copy {direction}")

    def check_indices(self, name: str, indices: list[Tensor], args: tuple[Any, ...]) -> None:
        """Record indices that are copied to the device, or masks that are read to count their entries."""
        is_fill = name != "index" and args[2].numel() == 1
        for index in indices:
            if not isinstance(index, DeviceTensor):
                self.record_wait("index on the CPU")
            elif index.dtype in (torch.bool, torch.uint8) and not is_fill:
                self.record_wait("index by a mask")

    def is_pinned(self, tensor: Tensor) -> bool:
        if isinstance(tensor, DeviceTensor):
            return False
        memory = tensor.untyped_storage().data_ptr()
        return any(each.untyped_storage().data_ptr() == memory for each in self.pinned)


def register_kernels() -> torch.library.Library:
    """Register kernels for copies inside torch that no mode sees: torch.tensor(.., device=), indexing by a list.

    They are removed with the library.
    """
    library = torch.library.Library("aten", "IMPL")
    library.impl("empty_strided", build_empty_strided, DISPATCH_KEY)
    library.impl("empty.memory_format", build_empty, DISPATCH_KEY)
    library.impl("_copy_from", copy_unseen, DISPATCH_KEY)
    torch._register_device_module(NAME, SimpleNamespace())  # gradient checkpointing asks it for random states
    return library


def prefer_gpu_kernels() -> None:
    """Let optimizers use the kernels for many tensors at once, as on GPUs."""
    foreach, optimizer = map(import_module, ("torch.utils._foreach_utils", "torch.optim.optimizer"))
    for module in (foreach, optimizer):
        for function in ("_get_foreach_kernels_supported_devices", "_get_fused_kernels_supported_devices"):
            devices = [NAME, *getattr(module, function)()]
            setattr(module, function, lambda devices=devices: devices)
    optimizer._foreach_supported_types.append(DeviceTensor)


class DeviceAutocast(TorchFunctionMode):
    """Autocast of the fake device: products in a lower precision, norms and losses in float32; None: switched off."""

    entered: ClassVar[list["DeviceAutocast"]] = []
    LOWER = (F.linear, F.conv2d, F.scaled_dot_product_attention, torch.matmul, torch.bmm, Tensor.__matmul__, Tensor.matmul)
    FLOAT32 = (F.layer_norm, F.group_norm, F.softmax, Tensor.softmax, F.cross_entropy, F.mse_loss, Tensor.logsumexp)

    def __init__(self, dtype: torch.dtype | None) -> None:
        super().__init__()
        self.dtype = dtype

    def __enter__(self) -> Self:
        self.entered.append(self)
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        self.entered.pop()
        super().__exit__(*error)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, dtype = kwargs or {}, None
        if self.dtype is not None and self.entered[-1] is self:  # the innermost one decides
            dtype = self.dtype if func in self.LOWER else torch.float32 if func in self.FLOAT32 else None
        if dtype is None:
            return func(*args, **kwargs)

        def cast(tensor: Tensor) -> Tensor:
            return tensor.to(dtype) if tensor.is_floating_point() and isinstance(tensor, DeviceTensor) else tensor

        return func(*map_tensors(args, cast), **dict(zip(kwargs, map_tensors(kwargs.values(), cast), strict=True)))


def build_autocast(device_type: str, dtype: torch.dtype | None = None, enabled: bool = True, **options: Any) -> Any:
    """Build autocast of the fake device, or torch's of any other, in place of `torch.autocast`."""
    if device_type != NAME:
        return torch.amp.autocast_mode.autocast(device_type, dtype, enabled, **options)
    return DeviceAutocast((dtype or torch.bfloat16) if enabled else None)


def list_tensors(items: Iterable[Any]) -> list[Tensor]:
    """Return the tensors among the arguments of an operation, and in lists of them."""
    found: list[Tensor] = []
    for item in items:
        if isinstance(item, Tensor):
            found.append(item)
        elif isinstance(item, list | tuple):
            found += list_tensors(item)
    return found


def map_tensors(items: Iterable[Any], function: Callable[[Tensor], Tensor]) -> list[Any]:
    """Return the items with each tensor, also in lists of them, replaced by the function of it."""
    mapped = []
    for item in items:
        if isinstance(item, Tensor):
            item = function(item)
        elif isinstance(item, list | tuple):
            item = type(item)(map_tensors(item, function))
        mapped.append(item)
    return mapped


def get_content(tensor: Tensor) -> Tensor:
    return tensor.content if isinstance(tensor, DeviceTensor) else tensor


def find_caller() -> str:
    """Return file and function of our package that the running operation belongs to."""
    frame = sys._getframe()
    while frame is not None:
        code = frame.f_code
        if code.co_filename.startswith(PACKAGE):
            return f"{Path(code.co_filename).relative_to(PACKAGE).as_posix()}:{code.co_name}"
        frame = frame.f_back
    return ""


def build_empty_strided(size: Any, stride: Any, *, dtype: Any = None, **options: Any) -> Tensor:
    return DeviceTensor(torch.empty_strided(size, stride, dtype=dtype))


def build_empty(size: Any, *, dtype: Any = None, **options: Any) -> Tensor:
    return DeviceTensor(torch.empty(size, dtype=dtype))


def copy_unseen(source: Tensor, destination: Tensor, non_blocking: bool = False) -> Tensor:
    """Copy for torch's own code, e.g. `torch.tensor`, which waits."""
    device = DeviceTensor.device_of_all
    assert device is not None
    device.record_wait("copy of Python numbers to the device")
    if destination.dtype in DOUBLE and isinstance(destination, DeviceTensor):
        device.record("float64", "tensor")
    read, written = (each.content if isinstance(each, DeviceTensor) else each for each in (source, destination))
    written.copy_(read)
    return destination
