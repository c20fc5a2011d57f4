"""Errors that the user can fix."""

from __future__ import annotations


class Error(ValueError):
    """Bad input: a file, an option or a setting that the user can change.

    The `ul` command prints the message on one line and exits with code 2. Any other exception is a
    bug and shows its traceback.
    """


UserError = Error  # its name in version 0.1


class MissingPackageError(Error, ModuleNotFoundError):
    """An optional package is not installed; the message says how to install it."""


class RunError(Error):
    """A run folder cannot be used; the one-line message says what to do."""
