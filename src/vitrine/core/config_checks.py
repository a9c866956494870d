"""Checks that config dataclasses run in `__post_init__`, so that a bad run fails before data or weights are touched."""

import sys
from dataclasses import fields
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def require_field_types(config: "DataclassInstance") -> None:
    """Check choices, flags, texts and numbers against their annotations; tuples have checks of their own."""
    for field in fields(config):
        value = getattr(config, field.name)
        kinds = get_args(field.type) if get_origin(field.type) in (Union, UnionType) else (field.type,)
        if value is None and NoneType in kinds:
            continue
        expected = find_expected_type(value, kinds[0])
        if expected is not None:
            raise ValueError(f"{field.name}={value!r} must be {expected}.")


def find_expected_type(value: object, kind: Any) -> str | None:
    """Return what `value` should be, for an error message, or None if it is of type `kind`."""
    if get_origin(kind) is Literal:
        choices = get_args(kind)
        return None if value in choices else f"one of {', '.join(choices)}"
    if kind is str:
        return None if isinstance(value, str) else "text"
    if kind is bool:
        return None if isinstance(value, bool) else "True or False"
    if kind is int:
        return None if is_whole(value) else "a whole number"
    if kind is float:  # a whole number may be too large for a float; NaN and infinity are out of range too
        is_number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
        return None if is_number else "a number"
    return None


def is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def require_counts(config: "DataclassInstance", name: str, meaning: str) -> None:
    """Check that the field is a tuple of integers of at least 1; `meaning` explains them in the error."""
    value = getattr(config, name)
    if not isinstance(value, tuple) or not all(is_whole(item) and item >= 1 for item in value):
        raise ValueError(f"{name}={value!r} must be a tuple of whole numbers of at least 1: {meaning}.")


def require_at_least(config: "DataclassInstance", minimum: int, *names: str) -> None:
    """Check that each of the fields is None or at least `minimum`."""
    for name in names:
        value = getattr(config, name)
        if value is not None and value < minimum:
            raise ValueError(f"{name}={value} must be at least {minimum}.")


def require_positive(config: "DataclassInstance", *names: str) -> None:
    """Check that each of the fields is None or above 0."""
    for name in names:
        value = getattr(config, name)
        if value is not None and value <= 0:
            raise ValueError(f"{name}={value} must be above 0.")


def require_rates(config: "DataclassInstance", *names: str) -> None:
    """Check that each of the fields is in [0, 1), e.g. a dropout rate."""
    for name in names:
        value = getattr(config, name)
        if not 0 <= value < 1:
            raise ValueError(f"{name}={value} must be at least 0 and below 1.")
