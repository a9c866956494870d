"""Timing of several contestants: they alternate within a round, and the result is the median ratio to ours over the rounds.

The speed of a machine drifts; contestants that are timed side by side drift together, so their ratios stay comparable.
"""

import math
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor

from peers import OURS, Network, Peer, compute_versions, find_peers
from vitrine.core.files import write_json

FLOOR = "matrix products alone"
MIN_RATIO = 0.97
# A timing shorter than this measures the clock and the scheduler more than the network.
MIN_TIMING_S = 0.05

# OpenMP threads keep spinning for a while after their work, which would slow the next contestant down.
PAUSE_S = 0.2

Step = Callable[[], object]


@dataclass(frozen=True)
class Setting:
    """A network and a batch size to measure, with a title for the table."""

    name: str
    network: Network
    batch_size: int


@dataclass(frozen=True)
class Figure:
    """Result of one contestant in one setting. `ratio` is its time divided by the reference's (usually ours)."""

    name: str
    median_ms: float
    ratio: float
    ratio_quartiles: tuple[float, float]


@dataclass(frozen=True)
class Comparison:
    """Results of all contestants in one setting."""

    setting: Setting
    figures: list[Figure]
    """Ours first, then the peers."""
    floor: Figure

    @property
    def fastest_peer(self) -> Figure | None:
        peers = [figure for figure in self.figures if not figure.name.startswith(OURS)]
        return min(peers, key=lambda figure: figure.ratio, default=None)


def compare(
    settings: Iterable[Setting],
    build_steps: Callable[[Setting, list[Peer]], dict[str, Step]],
    rounds: int,
    threads: int,
    json_file: Path | None,
) -> None:
    """Measure every setting, print a table of each, and save the results as JSON if `json_file` is given."""
    if rounds < 2:
        raise SystemExit(f"--rounds {rounds} must be at least 2, to measure a spread.")
    torch.set_num_threads(threads)
    peers, missing = find_peers()
    comparisons = []
    for setting in settings:
        torch.manual_seed(0)
        seconds = measure(build_steps(setting, peers), rounds, setting.name)
        comparisons.append(summarise(setting, seconds))
    report(comparisons, missing)
    if json_file is not None:
        save_json(json_file, comparisons, threads, compute_versions(peers), missing)


def measure(steps: dict[str, Step], rounds: int, title: str) -> list[dict[str, float]]:
    """Return for each round the seconds of one call of each contestant, which alternate in changing order."""
    num_calls = max(1, math.ceil(MIN_TIMING_S / warm_up(steps)))
    names = list(steps)
    seconds = []
    for index in track(range(rounds), description=title, console=Console(stderr=True), transient=True):
        first = index % len(names)
        order = names[first:] + names[:first]
        if index % 2 == 1:  # otherwise each would always follow the same contestant and find its data in the caches
            order.reverse()
        times = {}
        for name in order:
            time.sleep(PAUSE_S)
            times[name] = time_step(steps[name], num_calls)
        seconds.append({name: times[name] for name in names})
    return seconds


def warm_up(steps: dict[str, Step]) -> float:
    """Call every contestant once, to allocate memory and choose kernels; return the seconds of the fastest second call."""
    for step in steps.values():
        step()
    return min(time_step(step, 1) for step in steps.values())


def time_step(step: Step, num_calls: int) -> float:
    start = time.perf_counter()
    for _ in range(num_calls):
        step()
    return (time.perf_counter() - start) / num_calls


def summarise(setting: Setting, seconds: list[dict[str, float]]) -> Comparison:
    *contestants, floor = compute_figures(seconds)
    return Comparison(setting, contestants, floor)


def compute_figures(seconds: list[dict[str, float]], reference: str = OURS) -> list[Figure]:
    """Return median and spread over the rounds of each contestant, with ratios to the time of `reference`."""
    figures = []
    for name in seconds[0]:
        ratios = [times[name] / times[reference] for times in seconds]
        lower, median, upper = statistics.quantiles(ratios, n=4, method="inclusive")
        median_ms = 1000 * statistics.median(times[name] for times in seconds)
        figures.append(Figure(name, median_ms, median, (lower, upper)))
    return figures


def report(comparisons: list[Comparison], missing: dict[str, str]) -> None:
    """Print a table of each comparison, whether we keep up with the fastest peer, and which peers are missing."""
    console = Console()
    for comparison in comparisons:
        console.print(build_table(comparison.setting.name, (*comparison.figures, comparison.floor)))
        peer = comparison.fastest_peer
        if peer is not None:
            verdict = "met" if peer.ratio >= MIN_RATIO else "missed"
            console.print(f"fastest peer: {peer.name}, ratio {peer.ratio:.3f} (needs >= {MIN_RATIO}: {verdict})")
        console.print(f"floor is {100 * comparison.floor.ratio:.0f} % of our time\n")
    for package, reason in missing.items():
        console.print(f"missing: {package} ({reason})", markup=False)


def build_table(title: str, figures: Iterable[Figure], ratio: str = "ratio to us") -> Table:
    """Build the table of one setting; `ratio` heads the column of ratios."""
    table = Table(title=title, title_justify="left")
    table.add_column("contestant")
    for column in ("median ms", ratio, "middle half of rounds"):
        table.add_column(column, justify="right")
    for figure in figures:
        lower, upper = figure.ratio_quartiles
        table.add_row(figure.name, f"{figure.median_ms:.2f}", f"{figure.ratio:.3f}", f"{lower:.3f} .. {upper:.3f}")
    return table


def save_json(
    path: Path, comparisons: list[Comparison], threads: int, versions: dict[str, str], missing: dict[str, str]
) -> None:
    """Write the results with the versions that they were measured with."""
    result = {
        "torch": torch.__version__,
        "threads": threads,
        "versions": versions,
        "missing": missing,
        "settings": [asdict(comparison) for comparison in comparisons],
    }
    write_json(path, result)


@dataclass(frozen=True)
class Product:
    """Shape of `count` independent matrix products of (rows, inner) with (inner, columns)."""

    count: int
    rows: int
    inner: int
    columns: int


def compute_products(network: Network, batch_size: int) -> list[Product]:
    """Return the matrix products of one forward pass in order (arXiv:2010.11929, eq. 1 to 8)."""
    patches, tokens = batch_size * network.num_patches, batch_size * (network.num_patches + 1)
    width, mlp_dim, per_image = network.width, network.mlp_dim, network.num_patches + 1
    heads, head_dim = batch_size * network.num_heads, network.width // network.num_heads
    block = [
        Product(1, tokens, width, 3 * width),
        Product(heads, per_image, head_dim, per_image),
        Product(heads, per_image, per_image, head_dim),
        Product(1, tokens, width, width),
        Product(1, tokens, width, mlp_dim),
        Product(1, tokens, mlp_dim, width),
    ]
    embedding = Product(1, patches, 3 * network.patch_size**2, width)
    return [embedding, *(block * network.depth), Product(1, batch_size, width, network.num_classes)]


def build_floor(setting: Setting, backward: bool) -> Step:
    """Build a step that computes only the matrix products of a pass, into memory allocated beforehand.

    Each product has its own right-hand side, as each layer has its own weights, so that they are read from memory here too.
    """
    products = compute_products(setting.network, setting.batch_size)
    rights = [torch.randn(matrix_shape(product, product.columns, product.inner)) for product in products]
    shared = {product: build_workspace(product) for product in products}

    def step() -> None:
        for product, right in zip(products, rights, strict=True):
            left, out, _, _ = shared[product]
            multiply(left, right.mT, out)
        for product, right in zip(products, rights, strict=True) if backward else ():
            left, out, left_gradient, right_gradient = shared[product]
            multiply(out.mT, left, right_gradient)
            if product is not products[0]:  # images need no gradient
                multiply(out, right, left_gradient)

    return step


def build_workspace(product: Product) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Allocate left-hand side, product, and the gradients of the left- and the right-hand side."""
    left = torch.randn(matrix_shape(product, product.rows, product.inner))
    out = torch.empty(matrix_shape(product, product.rows, product.columns))
    return left, out, torch.empty_like(left), torch.empty(matrix_shape(product, product.columns, product.inner))


def matrix_shape(product: Product, *sides: int) -> tuple[int, ...]:
    return sides if product.count == 1 else (product.count, *sides)


def multiply(left: Tensor, right: Tensor, out: Tensor) -> None:
    (torch.mm if left.ndim == 2 else torch.bmm)(left, right, out=out)
