"""What the library says aloud and goes on: an assumption, a change that was asked for. Never for an error."""

import warnings


class Notice(UserWarning):
    """Shown by the command line as one line, without the place in the code."""


def notice(message: str) -> None:
    warnings.warn(message, Notice, stacklevel=2)
