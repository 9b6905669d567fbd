"""Errors of the Spark source and sink. Spark shows the text on the driver; it names the option to change."""

from __future__ import annotations

from typing import Any

from cometmq.errors import Error, InvalidArgument

__all__ = ["DataLoss", "OptionError", "PathMissing"]


class OptionError(InvalidArgument):
    """An option is unknown, missing, or has a value that cannot be used.

    Attributes:
        option: the option to change, as the documentation spells it.
    """

    def __init__(self, option: str, text: str) -> None:
        """``text`` says what is wrong and what would be right."""
        super().__init__(f"option {option}: {text}")
        self.option = option

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the text as it is; the constructor would put the option's name before it again."""
        return _restore_option_error, (self.option, self.message)


def _restore_option_error(option: str, message: str) -> OptionError:
    error = OptionError(option, "")
    error.args, error.message = (message,), message
    return error


class PathMissing(OptionError):
    """The store's directory cannot be seen where it is needed: on the driver, or on an executor."""


class DataLoss(Error):
    """Messages that were to be read are gone: they expired, or the store was cut or re-created.

    With ``failOnDataLoss=false`` the rest is read, and the loss is logged.
    """
