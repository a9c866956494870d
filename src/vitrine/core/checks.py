"""Checks that a configuration makes of its own fields, so that a bad run fails before data or weights are touched."""

from dataclasses import fields
from typing import TYPE_CHECKING, get_args

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def require_choices(config: "DataclassInstance") -> None:
    """A misspelt choice fails here, not in the middle of a forward pass."""
    for item in fields(config):
        choices = get_args(item.type)
        value = getattr(config, item.name)
        if choices and all(isinstance(choice, str) for choice in choices) and value not in choices:
            raise ValueError(f"{item.name}={value!r} must be one of {', '.join(choices)}.")


def require_at_least(config: "DataclassInstance", minimum: int, *names: str) -> None:
    for name in names:
        value = getattr(config, name)
        if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
            raise ValueError(f"{name}={value!r} must be a whole number of at least {minimum}.")


def require_positive(config: "DataclassInstance", *names: str) -> None:
    for name in names:
        value = getattr(config, name)
        if value is not None and not value > 0:
            raise ValueError(f"{name}={value!r} must be above 0.")


def require_rates(config: "DataclassInstance", *names: str) -> None:
    for name in names:
        value = getattr(config, name)
        if not 0 <= value < 1:
            raise ValueError(f"{name}={value!r} must be at least 0 and below 1.")
