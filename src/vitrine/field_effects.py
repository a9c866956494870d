"""Which fields of a recipe have an effect, and when: one table, and what becomes of a field without an effect.

A field that the user set without an effect is an error. One that a named recipe brought along is dropped, with a notice. Both
happen where recipes are changed and where runs begin, not in `Recipe` itself: the recipe.json of an older run may hold such
fields, and is still read and resumed. No torch here.
"""

from collections.abc import Callable, Iterator
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from vitrine.core.console import warn_user
from vitrine.objectives.config import OBJECTIVES

if TYPE_CHECKING:
    from vitrine.recipe import Recipe


@dataclass(frozen=True)
class Effect:
    """When some fields of a recipe have an effect."""

    fields: tuple[str, ...]
    """Dotted names of fields, or of whole groups."""
    needs: str
    """The condition, for messages."""
    holds: Callable[["Recipe"], bool]


def list_objective_effects() -> Iterator[Effect]:
    """Yield the effects of fields that only some objectives use."""
    for name in sorted({name for spec in OBJECTIVES.values() for name in spec.recipe_fields}):
        users = [repr(objective) for objective, spec in OBJECTIVES.items() if name in spec.recipe_fields]
        yield Effect((name,), f"objective={' or '.join(users)}", lambda r, n=name: n in OBJECTIVES[r.objective].recipe_fields)
    users = [repr(objective) for objective, spec in OBJECTIVES.items() if spec.needs_labels]
    yield Effect(
        ("model.hidden_head", "model.head_bias"),
        f"objective={' or '.join(users)}",
        lambda r: OBJECTIVES[r.objective].needs_labels,
    )


# Fields that are not listed always have an effect. Those of one choice and not of another are listed with that choice.
EFFECTS: tuple[Effect, ...] = (
    *list_objective_effects(),
    Effect(("model.head_bias",), "head_init='zero'", lambda r: r.head_init == "zero"),
    Effect(("model.readout_layers", "model.readout"), "a new head", lambda r: r.head_init != "keep"),
    Effect(("data.subset_seed",), "data.subset or data.held_out", lambda r: r.data.subset != "all" or r.data.held_out > 0),
    Effect(("loader.prefetch", "loader.stuck_after_s"), "worker processes (loader.num_workers)", lambda r: uses_workers(r)),
    Effect(("augment.crop_area", "augment.crop_ratio"), "augment.crop='inception'", lambda r: r.augment.crop == "inception"),
    Effect(("augment.resize",), "augment.crop='random'", lambda r: r.augment.crop == "random"),
    Effect(("augment.padding",), "augment.crop='pad'", lambda r: r.augment.crop == "pad"),
    Effect(("augment.interpolation",), "an augment.crop other than 'none'", lambda r: r.augment.crop != "none"),
    Effect(("augment.rand_augment_magnitude",), "augment.rand_augment_ops", lambda r: r.augment.rand_augment_ops > 0),
    Effect(("augment.erase_fill",), "augment.erase_rate", lambda r: r.augment.erase_rate > 0),
    Effect(("optim.beta1", "optim.beta2", "optim.eps"), "optim.kind='adamw'", lambda r: r.optim.kind == "adamw"),
    Effect(("optim.momentum",), "optim.kind='sgd'", lambda r: r.optim.kind == "sgd"),
    Effect(("optim.decay_mask",), "optim.weight_decay", lambda r: r.optim.weight_decay > 0),
    Effect(("optim.layer_decay",), "an optim.frozen_blocks other than -1", lambda r: r.optim.frozen_blocks != -1),
    Effect(("optim.final_rate",), "optim.decay='linear'", lambda r: r.optim.decay == "linear"),
    Effect(("optim.decay_at",), "optim.decay='piecewise'", lambda r: r.optim.decay == "piecewise"),
    Effect(("optim.rsqrt_timescale",), "optim.decay='rsqrt'", lambda r: r.optim.decay == "rsqrt"),
)


def uses_workers(recipe: "Recipe") -> bool:
    """Return whether images may be loaded by worker processes; by default those in memory are not."""
    return not recipe.data.in_memory if recipe.loader.num_workers is None else recipe.loader.num_workers > 0


def find_unused(recipe: "Recipe") -> dict[str, str]:
    """Return the fields that have no effect in a recipe, whatever their values, and what each of them needs."""
    unused: dict[str, str] = {}
    for effect in EFFECTS:
        if not effect.holds(recipe):
            for name in (leaf for field in effect.fields for leaf in list_leaves(recipe, field)):
                unused.setdefault(name, effect.needs)
    return unused


def list_leaves(recipe: "Recipe", name: str) -> list[str]:
    """Return the dotted names of a group's fields; of a single field, its own."""
    value = attrgetter(name)(recipe)
    return [f"{name}.{field.name}" for field in fields(value)] if is_dataclass(value) else [name]


def read_default(recipe: "Recipe", name: str) -> Any:
    """Return the default value of a field, given by its dotted name."""
    group, _, leaf = name.rpartition(".")
    (field,) = (each for each in fields(attrgetter(group)(recipe) if group else recipe) if each.name == leaf)
    return field.default if field.default_factory is MISSING else field.default_factory()


def drop_unused(recipe: "Recipe") -> "Recipe":
    """Return the recipe with every field that has no effect set to its default."""
    changes: dict[str, Any] = {}
    for name in find_unused(recipe):
        group, _, leaf = name.rpartition(".")
        parent = changes.get(group, getattr(recipe, group)) if group else None
        default = read_default(recipe, name)
        changes[group or leaf] = default if parent is None else replace(parent, **{leaf: default})
    return replace(recipe, **changes)


def resolve_unused(recipe: "Recipe", base: "Recipe | None" = None) -> "Recipe":
    """Return a recipe without the fields that have no effect in it; raise ValueError if the user set one of them.

    What `base` has too came with it, and is dropped with a notice. Without `base`, the user set all that is not a default.
    """
    dropped: dict[str, list[str]] = {}
    for name, needs in find_unused(recipe).items():
        value = attrgetter(name)(recipe)
        if value == read_default(recipe, name):
            continue
        if base is None or value != attrgetter(name)(base):
            raise ValueError(f"{name}={value!r} has no effect without {needs}: leave it out, or set that too.")
        dropped.setdefault(needs, []).append(f"{name}={value!r}")
    if dropped:
        reasons = "; ".join(f"{', '.join(names)} without {needs}" for needs, names in dropped.items())
        warn_user(f"Dropped settings of the recipe that have no effect here: {reasons}.")
    return drop_unused(recipe)
