"""Recipe, its JSON, differences that forbid a resume, recipe as options.

A recipe: all that a run is made of, as frozen dataclasses that are checked before anything is loaded.

No torch here, so that `vitrine train NAME --help` and `--list` answer at once.
What to type for a run: the words that make `vitrine train` and `vitrine finetune` of its recipe. No torch here.
"""

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, is_dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

from vitrine.core.config_checks import require_field_types
from vitrine.data.config import AugmentConfig, DataConfig, LoaderConfig, MixupConfig
from vitrine.evaluation.config import EvaluationConfig
from vitrine.models.settings import ModelSettings
from vitrine.objectives.config import MaskedPatchesConfig, ObjectiveKind, SupervisedConfig
from vitrine.training.config import MachineConfig, OptimConfig, ReportConfig, SavingConfig

HeadInit = Literal["zero", "ridge", "discriminant"]

# Fields, or whole groups of them, that change nothing of what a run computes: it may be resumed with others.
FREE = ("device", "machine", "saving", "report", "loader.num_workers", "loader.prefetch", "evaluation.batch_size")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """One run: which network, on which images, minimising what, by which optimizer, for how long."""

    model: ModelSettings = field(default_factory=lambda: ModelSettings(name="ViT-Ti/16"))
    data: DataConfig = field(default_factory=DataConfig)
    loader: LoaderConfig = field(default_factory=LoaderConfig)
    augment: AugmentConfig = field(default_factory=AugmentConfig)
    mixing: MixupConfig = field(default_factory=MixupConfig)
    objective: ObjectiveKind = "supervised"
    """Learning from labels, or without any by predicting patches that were masked."""
    supervised: SupervisedConfig = field(default_factory=SupervisedConfig)
    masked_patches: MaskedPatchesConfig = field(default_factory=MaskedPatchesConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    epochs: float | None = None
    """Length of the run by the data."""
    total_steps: int | None = None
    """Length of the run in steps of the optimizer; where it is given, it counts, not epochs."""
    head_init: HeadInit = "zero"
    """Of a checkpoint's new head: the paper's zeros, or a closed-form solution on its frozen features."""
    polyak_factor: float | None = None
    """What stays, at each step, of the averaged weights that are evaluated and saved; 0.9999 in the paper. None: no average."""
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    machine: MachineConfig = field(default_factory=MachineConfig)
    saving: SavingConfig = field(default_factory=SavingConfig)
    report: ReportConfig = field(default_factory=ReportConfig)
    seed: int = 0
    device: str | None = None
    """As cuda or cpu; None: a GPU where there is one."""

    def __post_init__(self) -> None:
        require_field_types(self)
        self._check_length()
        if self.polyak_factor is not None and not 0 < self.polyak_factor < 1:
            raise ValueError(f"polyak_factor={self.polyak_factor} must be between 0 and 1, as 0.9999.")
        if self.objective == "masked-patches":
            self._check_unlabelled()
        elif self.masked_patches != MaskedPatchesConfig():
            raise ValueError(
                "masked_patches has settings of predicting patches, which objective='supervised' does not: take "
                "objective='masked-patches', or leave them out."
            )
        if self.head_init != "zero" and self.model.checkpoint is None:
            raise ValueError(
                f"head_init={self.head_init!r} is for a checkpoint's features: give model.checkpoint, or leave it out."
            )
        if self.head_init != "zero" and self.supervised.loss == "sigmoid":
            raise ValueError(
                f"head_init={self.head_init!r} is as sure as softmax wants it: take head_init='zero' with the sigmoid loss."
            )
        if self.mixing.is_on and self.loader.batch_size // self.machine.accumulation_steps % 2 != 0:
            raise ValueError(
                f"loader.batch_size={self.loader.batch_size} in {self.machine.accumulation_steps} parts cannot be mixed, which "
                "is done in pairs: take parts of an even size."
            )
        if self.loader.batch_size % self.machine.accumulation_steps != 0:
            raise ValueError(
                f"machine.accumulation_steps={self.machine.accumulation_steps} must divide "
                f"loader.batch_size={self.loader.batch_size}."
            )

    def _check_unlabelled(self) -> None:
        for name, is_vain in (("mixing", self.mixing.is_on), (f"head_init={self.head_init!r}", self.head_init != "zero")):
            if is_vain:
                raise ValueError(
                    f"{name} is for learning from labels, which objective='masked-patches' does not: leave it out."
                )
        if self.supervised != SupervisedConfig():
            raise ValueError(
                "supervised has settings of learning from labels, which objective='masked-patches' does not: leave them out."
            )

    def _check_length(self) -> None:
        if self.epochs is None and self.total_steps is None:
            raise ValueError("epochs and total_steps are both None: give one of them, the length of the run.")
        if self.epochs is not None and self.epochs <= 0:
            raise ValueError(f"epochs={self.epochs} must be above 0.")
        if self.total_steps is not None:
            if self.total_steps < 1:
                raise ValueError(f"total_steps={self.total_steps} must be at least 1.")
            self.optim.require_room(self.total_steps)

    def compute_total_steps(self, num_images: int) -> int:
        """The length of the run in steps. An epoch is as many images as there are, whatever their last batch is."""
        if self.total_steps is not None:
            return self.total_steps
        assert self.epochs is not None
        total_steps = max(1, round(self.epochs * num_images / self.loader.batch_size))
        self.optim.require_room(total_steps)
        return total_steps

    def to_json(self) -> dict[str, Any]:
        return asdict(self, dict_factory=lambda items: {name: as_json(value) for name, value in items})


def as_json(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    return list(value) if isinstance(value, tuple) else value


def parse_recipe(content: object, name: str) -> Recipe:
    """What `to_json` wrote."""
    try:
        return parse_group(Recipe, content)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} is no recipe of this version: {error}") from None


def parse_group(kind: type[Any], content: object) -> Any:
    if not isinstance(content, dict):
        raise ValueError(f"{kind.__name__} must be an object, not {content!r:.60}.")
    hints = get_type_hints(kind)
    unknown = [name for name in content if name not in hints]
    if unknown:
        raise ValueError(f"{kind.__name__} has no field {unknown[0]!r}.")
    return kind(**{name: parse_value(hints[name], value) for name, value in content.items()})


def parse_value(kind: Any, value: Any) -> Any:
    if is_dataclass(kind):
        return parse_group(kind, value)  # type: ignore[arg-type]
    if Path in get_args(kind) and isinstance(value, str):
        return Path(value)
    return tuple(value) if isinstance(value, list) else value


def list_differences(old: Recipe, new: Recipe) -> list[str]:
    """In words, every field in which a run could not be resumed."""
    others = dict(list_fields(new.to_json()))
    return [
        f"{name} was {value!r} and is {others[name]!r}"
        for name, value in list_fields(old.to_json())
        if others[name] != value and not any(name == free or name.startswith(f"{free}.") for free in FREE)
    ]


def list_fields(content: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted names, as the command line has them, and values."""
    for name, value in content.items():
        if isinstance(value, dict):
            yield from list_fields(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def with_changes(recipe: Recipe, **groups: Any) -> Recipe:
    """The recipe with some fields changed: of a group by a dictionary, `with_changes(recipe, optim={"learning_rate": 0.1})`."""
    changed = {
        name: replace(getattr(recipe, name), **value) if isinstance(value, dict) else value for name, value in groups.items()
    }
    return replace(recipe, **changed)


def word_training(base: str, usual: Recipe, recipe: Recipe, out: Path) -> str:
    """`usual` is the recipe of the name `base`, and options say in what this one differs."""
    return join("vitrine", "train", base, *list_options(usual, recipe), "--out", out)


def word_transfer(base: str, usual: Recipe, recipe: Recipe, out: Path) -> str:
    model, data = recipe.model.checkpoint, recipe.data.source
    return join("vitrine", "finetune", model, data, "--recipe", base, *list_options(usual, recipe), "--out", out)


def list_options(usual: Recipe, recipe: Recipe) -> list[str]:
    before = dict(list_fields(usual.to_json()))
    fields = list_fields(recipe.to_json())
    return [word for name, value in fields if before[name] != value for word in format_option(name, value)]


def format_option(name: str, value: Any) -> list[str]:
    """As the command line has it: `--augment.no-flip`, `--model.stages 2 2 2`."""
    option = name.replace("_", "-")
    if isinstance(value, bool):
        group, dot, last = option.rpartition(".")
        return [f"--{option}" if value else f"--{group}{dot}no-{last}"]
    return [f"--{option}", *map(str, value if isinstance(value, Sequence) and not isinstance(value, str) else [value])]


def join(*words: object) -> str:
    return shlex.join(map(str, words))
