"""VtabConfig: the settings of `vitrine vtab`. No torch here."""

from dataclasses import dataclass

from vitrine.core.config_checks import require_at_least, require_counts, require_field_types
from vitrine.core.console import name_setting


@dataclass(frozen=True, kw_only=True)
class VtabConfig:
    """Settings of `vtab`: the tasks, the seeds, and the choices of a sweep."""

    tasks: tuple[str, ...] = ()
    """Names of tasks to run, e.g. pets flowers102 (default: all that are found)."""
    generated: bool = False
    """Add three tasks on generated images, with their own mean: position, orientation and count."""
    test_images: int | None = None
    """Test on at most this many images of each task (default: all, which the benchmark requires)."""
    seeds: tuple[int, ...] = ()
    """Run each task once with each of these seeds, e.g. 0 1 2, and report mean and spread."""
    sweep: bool = False
    """First choose learning rate and length, once for all tasks: train on 800 images, validate on 200, like the paper."""
    rates: tuple[float, ...] = ()
    """Learning rates to choose from (default: the recipe's, and 0.3 times it)."""
    lengths: tuple[int, ...] = ()
    """Numbers of steps to choose from (default: the recipe's, and 0.4 times it)."""

    def __post_init__(self) -> None:
        require_field_types(self)
        require_at_least(self, 1, "test_images")
        require_counts(self, "lengths", "steps of training")
        if not all(lr > 0 for lr in self.rates):
            raise ValueError(f"rates={self.rates} must be above 0.")
        for name in ("tasks", "seeds", "rates", "lengths"):
            values = getattr(self, name)
            if len(set(values)) != len(values):
                raise ValueError(f"{name}={values} must be distinct.")
        if (self.rates or self.lengths) and not self.sweep:
            given = f"{name_setting('rates')} and {name_setting('lengths')}"
            raise ValueError(f"{given} have no effect without {name_setting('sweep')}: add it, or leave them out.")
