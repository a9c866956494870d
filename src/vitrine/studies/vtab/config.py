"""What studies are asked for, as frozen dataclasses. No torch here."""

from dataclasses import dataclass

from vitrine.core.config_checks import require_at_least, require_counts, require_field_types

# Around the recipe's own, which is the better of each pair in the paper (appendix B.1.1); it does not name the other.
RATE_FACTORS = (0.3, 1.0)
LENGTH_FACTORS = (0.4, 1.0)


@dataclass(frozen=True, kw_only=True)
class VtabConfig:
    """Which tasks of VTAB are run, how often, and whether their setting is chosen first."""

    tasks: tuple[str, ...] = ()
    """Only these, as pets flowers102; all that are found, if none is named."""
    generated: bool = False
    """Three more tasks on generated images, with a mean of their own: where a shape is, where it points, how many dots."""
    test_images: int | None = None
    """Measure on at most so many test images of each task, where all would take too long; None: all, as the benchmark."""
    seeds: tuple[int, ...] = ()
    """Several runs of each task, as 0 1 2, and the mean and spread of what they reach."""
    sweep: bool = False
    """Choose rate and length first, once for all tasks: trained on 800 images and measured on 200, as the paper did."""
    rates: tuple[float, ...] = ()
    """Learning rates to choose from; the recipe's, and 0.3 of it, if none is given."""
    lengths: tuple[int, ...] = ()
    """Steps to choose from; the recipe's, and 0.4 of them, if none is given."""

    def __post_init__(self) -> None:
        require_field_types(self)
        if self.test_images is not None:
            require_at_least(self, 1, "test_images")
        require_counts(self, "lengths", "steps of training")
        if not all(rate > 0 for rate in self.rates):
            raise ValueError(f"rates={self.rates} must be above 0.")
        for name in ("tasks", "seeds", "rates", "lengths"):
            values = getattr(self, name)
            if len(set(values)) != len(values):
                raise ValueError(f"{name}={values} has one of them twice: each can count once only.")
        if (self.rates or self.lengths) and not self.sweep:
            raise ValueError("rates and lengths are to choose from, which is done by --sweep: add it, or leave them out.")
