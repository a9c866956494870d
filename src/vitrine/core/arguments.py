"""Command-line parsing with tyro: options become function arguments or dataclass fields, mistakes become one sentence.

tyro is imported on first use, so that `vitrine --help` does not wait for it. A config class may name the fields that `--help`
shows in a class variable COMMON; `--help-all` shows all.
"""

import difflib
import io
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext, redirect_stderr
from dataclasses import is_dataclass, replace
from functools import partial
from inspect import signature
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar, Union, get_args, get_origin, get_type_hints

from vitrine.core.console import COMMAND_OPTIONS, escape_controls, print_lines

if TYPE_CHECKING:
    from tyro._arguments import ArgumentDefinition
    from tyro._errors import ParseErrorEvent
    from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec

Options = TypeVar("Options")

OPTION_ALIASES: dict[str, str] = {}
"""Former spellings of renamed options, {"--old": "--new"}; they are still accepted."""

HELP, HELP_ALL = ("-h", "--help"), "--help-all"

SYNONYMS = {
    "lr": "learning-rate",
    "wd": "weight-decay",
    "bs": "batch-size",
    "steps": "total-steps",
    "max-steps": "total-steps",
    "iterations": "total-steps",
    "minutes": "epochs",
    "num-epochs": "epochs",
    "workers": "num-workers",
    "output": "out",
    "gpu": "device",
    "img-size": "image-size",
    "resolution": "image-size",
}
"""Names that other tools have for our options, without their group; for the advice about unknown options."""


def format_own_command() -> str:
    """Return the command line of this process, e.g. for a page that says how it was made."""
    return shlex.join(["vitrine", *sys.argv[1:]])


def parse_arguments(name: str, command: Callable[..., None], arguments: list[str]) -> Callable[[], None]:
    """Return the command with its arguments bound, ready to be called."""
    hints = get_type_hints(command, include_extras=True)
    parameters = signature(command).parameters.values()
    shown = [each.replace(annotation=with_readable_help(each.name, hints[each.name])) for each in parameters]

    def bind(*values: Any, **options: Any) -> Callable[[], None]:
        return partial(command, *values, **options)

    bind.__doc__ = command.__doc__
    bind.__annotations__ = {each.name: each.annotation for each in shown}
    bind.__signature__ = signature(command).replace(parameters=shown)  # pyright: ignore[reportFunctionMemberAccess]
    return parse(name, bind, arguments)


def parse_options(
    name: str,
    config_class: type[Options],
    arguments: list[str],
    defaults: Options,
    short_forms: Mapping[str, str] | None = None,
) -> Options:
    """Return a dataclass whose fields are options; fields that are not given are as in `defaults`."""
    return parse(name, config_class, replace_options(arguments, short_forms or {}), default=defaults)


def parse_known_options(config_class: type[Options], arguments: list[str], defaults: Options) -> Options | None:
    """Parse only the options of this dataclass and ignore all others; None if one of them has a bad value."""
    import tyro

    arguments = replace_options(arguments, OPTION_ALIASES)
    try:
        with redirect_stderr(io.StringIO()):
            return tyro.cli(config_class, args=arguments, default=defaults, return_unknown_args=True, add_help=False)[0]
    except SystemExit:
        return None


def parse(name: str, target: Callable[..., Any], arguments: list[str], **options: Any) -> Any:
    """Parse the arguments of the command `name`; bad input raises ValueError with one sentence."""
    import tyro

    def raise_sentence(event: "ParseErrorEvent") -> None:
        """Raise tyro's parse error as one sentence."""
        sentence = describe_parse_error(event, target)
        if sentence is not None:
            raise ValueError(f"{sentence} All options: `vitrine {name} {HELP_ALL if has_rare_options(target) else HELP[1]}`.")

    if COMMAND_OPTIONS.get() is not None:  # not in Python
        COMMAND_OPTIONS.set(partial(list_options, target))
    shows_all = HELP_ALL in arguments
    arguments = replace_options(arguments, {**OPTION_ALIASES, HELP_ALL: HELP[1]})
    registry = build_registry(only_common=not shows_all and not set(HELP).isdisjoint(arguments))
    try:
        with intercept_parse_errors(raise_sentence):
            return tyro.cli(target, prog=escape_controls(f"vitrine {name}"), args=arguments, registry=registry, **options)
    except SystemExit as end:
        if end.code == 0 and not shows_all and has_rare_options(target):
            print_lines(f"These are the common options; `vitrine {name} {HELP_ALL}` lists all.")
        raise


def replace_options(arguments: Iterable[str], spellings: Mapping[str, str]) -> list[str]:
    """Replace spellings of options, alone or as `--old=value`, by the current ones."""
    split = (word.partition("=") for word in arguments)
    return [spellings.get(option, option) + sign + value for option, sign, value in split]


def list_options(target: Callable[..., Any], prefix: str = "") -> Iterator[str]:
    """Yield the options of a command or a config class with their dotted names, e.g. --optim.learning-rate."""
    for name, hint in get_type_hints(target, include_extras=True).items():
        kind, *notes = get_args(hint) if get_origin(hint) is Annotated else (hint,)
        group = next((note.name for note in notes if getattr(note, "name", None) is not None), name)
        if is_dataclass(kind):
            yield from list_options(kind, f"{prefix}{group}." if group else prefix)  # pyright: ignore[reportArgumentType]
        elif name != "return" and get_origin(kind) is not ClassVar:
            yield f"--{prefix}{group}".replace("_", "-")


def has_rare_options(target: Callable[..., Any]) -> bool:
    """Return whether `--help` leaves out some options of a command or a config class."""
    if hasattr(target, "COMMON"):
        return True
    hints = get_type_hints(target, include_extras=True).values()
    kinds = (get_args(hint)[0] if get_origin(hint) is Annotated else hint for hint in hints)
    return any(is_dataclass(kind) and has_rare_options(kind) for kind in kinds)  # pyright: ignore[reportArgumentType]


def describe_unknown_options(tokens: list[str], target: Callable[..., Any]) -> str:
    """Name the unknown options among some words, or else the words, each with the nearest options of the command."""
    unknown = [token.partition("=")[0] for token in tokens if token.startswith("-")] or tokens
    known = list(list_options(target))
    return f"Unrecognised options: {', '.join(f'{word}{suggest_options(word, known)}' for word in unknown)}."


def suggest_options(word: str, known: list[str]) -> str:
    """Return advice about an unknown option: those with its name in some group, else the ones spelt most like it."""
    name = word.lstrip("-").replace("_", "-").lower()
    name = SYNONYMS.get(name, name)
    nearest = [option for option in known if option.lstrip("-").rpartition(".")[2] == name]
    nearest = nearest or difflib.get_close_matches(f"--{name}", known, n=3, cutoff=0.6)
    return f" (nearest: {', '.join(nearest[:3])})" if nearest else ""


def intercept_parse_errors(hook: "Callable[[ParseErrorEvent], None]") -> AbstractContextManager[None]:
    """Call `hook` with tyro's typed parse errors.

    The module is private. Where a tyro release lacks it, tyro prints its own message and exits with status 2.
    """
    try:
        from tyro._errors import on_parse_error
    except ImportError:
        return nullcontext()
    return on_parse_error(hook)


def describe_parse_error(event: "ParseErrorEvent", target: Callable[..., Any]) -> str | None:
    """Return one sentence for a parse error, or None for a kind that is left to tyro's own output."""
    from tyro import _errors

    if isinstance(event, _errors.MissingArgs):
        missing = ", ".join(option_name(each.arg) for each in event.missing_arguments)
        unknown = f" {describe_unknown_options(event.unrecognized_tokens, target)}" if event.unrecognized_tokens else ""
        return f"Missing: {missing}.{unknown}"
    if isinstance(event, _errors.UnrecognizedArgs):
        return describe_unknown_options(event.tokens, target)
    if isinstance(event, _errors.InvalidChoice):
        return f"{option_name(event.argument)} {event.value} must be one of {', '.join(event.choices)}."
    if isinstance(event, _errors.BadValue):
        if event.argument.is_positional():
            return f"Missing: {option_name(event.argument)}."
        return f"{option_name(event.argument)} expects a value ({event.argument.lowered.metavar})."
    if isinstance(event, _errors.InstantiationFailure):
        message = event.message if event.message.endswith(".") else f"{event.message}."
        if event.argument is None:  # raised by a check in a config dataclass, which names the field itself
            return message
        return f"{option_name(event.argument)} expects {event.argument.lowered.metavar}: {message}"
    return None


def option_name(argument: "ArgumentDefinition") -> str:
    """Return `--option`, or the metavar of a positional argument."""
    return str(argument.lowered.metavar) if argument.is_positional() else argument.lowered.name_or_flags[0]


def build_registry(only_common: bool = False) -> "ConstructorRegistry":
    """Return tyro rules for readable help: `PATH` instead of `{None}|PATH`, no `(default: None)`, no `--no-no-x`.

    With `only_common`, the fields that are not in their class's COMMON are left out.
    """
    from tyro.conf import Suppress
    from tyro.constructors import (
        ConstructorRegistry,
        PrimitiveConstructorSpec,
        PrimitiveTypeInfo,
        StructConstructorSpec,
        StructTypeInfo,
    )

    registry = ConstructorRegistry()
    is_asking = False

    @registry.primitive_rule
    def optional_rule(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
        """Show `X | None` as X in help."""
        kinds = [kind for kind in get_args(info.type) if kind is not NoneType]
        if get_origin(info.type) not in (Union, UnionType) or len(kinds) != 1 or NoneType not in get_args(info.type):
            return None
        spec = ConstructorRegistry.get_primitive_spec(PrimitiveTypeInfo.make(kinds[0], info.markers))
        return make_optional(spec) if isinstance(spec, PrimitiveConstructorSpec) else None

    @registry.struct_rule
    def dataclass_rule(info: StructTypeInfo) -> StructConstructorSpec | None:
        """Show the fields of a dataclass with readable help."""
        nonlocal is_asking
        if is_asking:
            return None
        is_asking = True
        try:
            spec = ConstructorRegistry.get_struct_spec(info)  # asks this rule again, then those of tyro
        finally:
            is_asking = False
        if not isinstance(spec, StructConstructorSpec):
            return None
        shown = getattr(info.type, "COMMON", None) if only_common else None
        fields = []
        for each in spec.fields:
            hint = with_readable_help(each.name, each.type)
            fields.append(replace(each, type=hint if shown is None or each.name in shown else Suppress[hint]))
        return replace(spec, fields=tuple(fields))

    return registry


def make_optional(spec: "PrimitiveConstructorSpec[Any]") -> "PrimitiveConstructorSpec[Any]":
    """Return a spec that also takes the word None, without a mention in its metavar."""
    return replace(
        spec,
        nargs=(1, spec.nargs) if isinstance(spec.nargs, int) and spec.nargs != 1 else spec.nargs,
        instance_from_str=lambda words: None if words == ["None"] else spec.instance_from_str(words),
        is_instance=lambda value: value is None or spec.is_instance(value),
        str_from_instance=lambda value: ["None"] if value is None else spec.str_from_instance(value),
        choices=None if spec.choices is None else (*spec.choices, "None"),
    )


def with_readable_help(name: str, hint: Any) -> Any:
    """Return the type of an option with notes to tyro on how to show it in `--help`."""
    from tyro.conf import FlagCreatePairsOff, arg

    if hint is bool and name.startswith("no_"):
        hint = FlagCreatePairsOff[bool]
    return Annotated[hint, arg(help_behavior_hint=format_default)]


def format_default(default: str) -> str:
    """Return the end of an option's help; what an unset option or flag does is said by its own text."""
    return "" if default in ("None", "False", "") else f"(default: {escape_controls(default)})"
