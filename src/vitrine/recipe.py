"""Recipe: all settings of a run, checked before anything is loaded; its JSON form, and the command line that makes it.

No torch here, so that `vitrine train NAME --help` and `--list` answer at once.
"""

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, is_dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args, get_type_hints

from vitrine.core.config_checks import require_at_least, require_field_types, require_positive
from vitrine.core.console import warn_user
from vitrine.data.config import AugmentConfig, DataConfig, LoaderConfig, MixupConfig
from vitrine.evaluation.config import EvaluationConfig
from vitrine.field_effects import find_unused, resolve_unused
from vitrine.models.settings import ModelSettings
from vitrine.objectives.config import MaskedPatchesConfig, ObjectiveKind, SupervisedConfig, check_objective
from vitrine.training.config import MachineConfig, OptimConfig, ReportConfig, SavingConfig

HeadInit = Literal["zero", "ridge", "discriminant", "keep"]

# Fields, or whole groups of them, that do not change what a run computes: it may be resumed with other values.
RESUMABLE_FIELDS = (
    *("device", "machine", "saving", "report", "evaluation.batch_size", "data.changed", "data.bad_images"),
    *("loader.num_workers", "loader.prefetch", "loader.stuck_after_s"),
)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Settings of one run: model, data, objective, optimizer and length."""

    COMMON: ClassVar[tuple[str, ...]] = (
        "model",
        "data",
        "loader",
        "augment",
        "mixing",
        "objective",
        "optim",
        "epochs",
        "total_steps",
        "head_init",
        "evaluation",
        "machine",
        "saving",
        "seed",
        "device",
    )
    model: ModelSettings = field(default_factory=lambda: ModelSettings(name="ViT-Ti/16"))
    data: DataConfig = field(default_factory=DataConfig)
    loader: LoaderConfig = field(default_factory=LoaderConfig)
    augment: AugmentConfig = field(default_factory=AugmentConfig)
    mixing: MixupConfig = field(default_factory=MixupConfig)
    objective: ObjectiveKind = "supervised"
    """Supervised learning from labels, or self-supervised prediction of masked patches."""
    supervised: SupervisedConfig = field(default_factory=SupervisedConfig)
    masked_patches: MaskedPatchesConfig = field(default_factory=MaskedPatchesConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    epochs: float | None = None
    """Number of passes over the training data."""
    total_steps: int | None = None
    """Number of optimizer steps; it takes precedence over epochs."""
    head_init: HeadInit = "zero"
    """Head of a checkpoint: the paper's zeros, a closed-form solution on its frozen features, or the checkpoint's own (keep),
    which must have the same classes."""
    polyak_factor: float | None = None
    """Factor of the Polyak average of the weights, which is evaluated and saved; 0.9999 in the paper. None: no average."""
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    machine: MachineConfig = field(default_factory=MachineConfig)
    saving: SavingConfig = field(default_factory=SavingConfig)
    report: ReportConfig = field(default_factory=ReportConfig)
    seed: int = 0
    """Random seed."""
    device: str | None = None
    """Device, e.g. cuda (default: GPU if available)."""

    def __post_init__(self) -> None:
        require_field_types(self)
        require_positive(self, "epochs")
        if self.epochs is None and self.total_steps is None:
            raise ValueError("epochs and total_steps are both None: set one of them.")
        if self.total_steps is not None:
            require_at_least(self, 1, "total_steps")
        if self.polyak_factor is not None and not 0 < self.polyak_factor < 1:
            raise ValueError(f"polyak_factor={self.polyak_factor} must be between 0 and 1, e.g. 0.9999.")
        check_objective(self)
        if self.head_init != "zero" and self.model.checkpoint is None:
            raise ValueError(f"head_init={self.head_init!r} needs the features of a checkpoint: set model.checkpoint.")
        batch_size, num_parts = self.loader.batch_size, self.machine.accumulation_steps
        if self.mixing.is_on and batch_size // num_parts % 2 != 0:
            raise ValueError(
                f"loader.batch_size={batch_size} in {num_parts} parts cannot be mixed in pairs: use parts of even size."
            )
        if batch_size % num_parts != 0:
            raise ValueError(f"machine.accumulation_steps={num_parts} must divide loader.batch_size={batch_size}.")

    def compute_total_steps(self, num_images: int) -> int:
        """Return the number of steps of the run. An epoch has exactly `num_images` images, whatever the last batch is."""
        if self.total_steps is not None:
            return self.total_steps
        assert self.epochs is not None
        return max(1, round(self.epochs * num_images / self.loader.batch_size))

    def to_json(self) -> dict[str, Any]:
        return asdict(self, dict_factory=lambda items: {name: value_to_json(value) for name, value in items})


def value_to_json(value: Any) -> Any:
    """Convert a field to what JSON can hold: paths to text, tuples to lists."""
    if isinstance(value, Path):
        return str(value)
    return list(value) if isinstance(value, tuple) else value


def parse_recipe(content: object, name: str) -> Recipe:
    """Build a recipe from its JSON; `name` says in errors where it came from."""
    try:
        return parse_group(Recipe, content)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} is not a recipe of this version: {error}") from None


def parse_group(config_class: type[Any], content: object) -> Any:
    """Build a config dataclass from its JSON object."""
    if not isinstance(content, dict):
        raise ValueError(f"{config_class.__name__} must be an object, not {content!r:.60}.")
    hints = get_type_hints(config_class)
    unknown = [name for name in content if name not in hints]
    if unknown:
        raise ValueError(f"{config_class.__name__} has no field {unknown[0]!r}.")
    return config_class(**{name: parse_value(hints[name], value) for name, value in content.items()})


def parse_value(hint: Any, value: Any) -> Any:
    """Convert a JSON value to the type of its field."""
    if is_dataclass(hint):
        return parse_group(hint, value)  # type: ignore[arg-type]
    if Path in get_args(hint) and isinstance(value, str):
        return Path(value)
    return tuple(value) if isinstance(value, list) else value


def list_differences(old: Recipe, new: Recipe) -> list[str]:
    """Describe every differing field that forbids resuming a run of `old` with `new`; those without an effect do not count."""
    new_values, unused = dict(list_fields(new.to_json())), find_unused(old).keys() & find_unused(new).keys()
    return [
        f"{name} was {value!r} and is {new_values[name]!r}"
        for name, value in list_fields(old.to_json())
        if new_values[name] != value
        and name not in unused
        and not any(name == allowed or name.startswith(f"{allowed}.") for allowed in RESUMABLE_FIELDS)
    ]


def list_fields(content: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted name of every field, as on the command line, and its value."""
    for name, value in content.items():
        if isinstance(value, dict):
            yield from list_fields(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def with_changes(recipe: Recipe, **groups: Any) -> Recipe:
    """Return the recipe with some fields changed, e.g. `with_changes(recipe, seed=1, optim={"learning_rate": 0.1})`.

    Raise ValueError if a change has no effect; what the recipe had and the changes make useless is dropped, with a notice.
    """
    partly = {name: replace(getattr(recipe, name), **value) for name, value in groups.items() if isinstance(value, dict)}
    return resolve_changes(replace(recipe, **{**groups, **partly}), recipe)


def resolve_changes(recipe: Recipe, base: Recipe) -> Recipe:
    """Return a recipe that was made from `base` without the fields that have no effect; raise ValueError for a useless change.

    Of epochs and total_steps, the one that was changed counts.
    """
    if recipe.epochs not in (None, base.epochs):
        if recipe.total_steps not in (None, base.total_steps):
            given = f"epochs={recipe.epochs} and total_steps={recipe.total_steps}"
            raise ValueError(f"{given} are both lengths of the run: leave one of them out.")
        recipe = replace(recipe, total_steps=None)
    recipe.model.check_name(base.model.name)
    if recipe.total_steps is not None:
        recipe = shorten_warmup(recipe, base, recipe.total_steps)
    return resolve_unused(recipe, base)


def shorten_warmup(recipe: Recipe, base: Recipe, total_steps: int) -> Recipe:
    """Return a recipe made from `base` with a warm-up that fits into the run.

    What `base` brought along, warm-up or cooldown, becomes a tenth of the run, with a notice; what the user set stays.
    """
    optim = recipe.optim
    if optim.warmup_steps + optim.cooldown_steps < total_steps:
        return recipe
    shorter = {
        name: min(getattr(optim, name), total_steps // 10)
        for name in ("warmup_steps", "cooldown_steps")
        if getattr(optim, name) == getattr(base.optim, name) > 0
    }
    optim = replace(optim, **shorter)
    optim.check_total_steps(total_steps)
    changes = ", ".join(f"optim.{name}={getattr(base.optim, name)} to {value}" for name, value in shorter.items())
    warn_user(f"Shortened {changes}, to fit into a run of total_steps={total_steps}.")
    return replace(recipe, optim=optim)


def format_train_command(base: str, default: Recipe, recipe: Recipe, out: Path) -> str:
    """Return the `vitrine train` command of a recipe that differs from `default`, the one named `base`, in some fields."""
    return join_command("vitrine", "train", base, *list_options(default, recipe), "--out", out)


def format_finetune_command(base: str, default: Recipe, recipe: Recipe, out: Path) -> str:
    """Return the `vitrine finetune` command of a recipe that differs from `default`, the one named `base`, in some fields."""
    model, data = recipe.model.checkpoint, recipe.data.source
    return join_command("vitrine", "finetune", model, data, "--recipe", base, *list_options(default, recipe), "--out", out)


def list_options(default: Recipe, recipe: Recipe) -> list[str]:
    """Return the command-line options that turn the recipe `default` into `recipe`."""
    before, unused = dict(list_fields(default.to_json())), find_unused(recipe)
    changed = ((name, value) for name, value in list_fields(recipe.to_json()) if before[name] != value and name not in unused)
    return [word for name, value in changed for word in format_option(name, value)]


def format_option(name: str, value: Any) -> list[str]:
    """Return a field as the words of an option, e.g. `--augment.no-flip` or `--model.stages 2 2 2`."""
    option = name.replace("_", "-")
    if find_type(name) is bool:  # one that may be None too takes a value
        group, dot, last = option.rpartition(".")
        return [f"--{option}" if value else f"--{group}{dot}no-{last}"]
    return [f"--{option}", *map(str, value if isinstance(value, Sequence) and not isinstance(value, str) else [value])]


def find_type(name: str) -> Any:
    """Return the annotated type of a field, given by its dotted name."""
    hint: Any = Recipe
    for part in name.split("."):
        hint = get_type_hints(hint)[part]
    return hint


def join_command(*words: object) -> str:
    return shlex.join(map(str, words))
