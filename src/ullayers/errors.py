"""Errors that the user can fix."""

from __future__ import annotations


class UserError(ValueError):
    """Bad input: a file, an option or a setting that the user can change.

    The `ul` command prints the message on one line and exits with code 2. Any other exception is a
    bug and shows its traceback.
    """


class MissingPackageError(UserError, ModuleNotFoundError):
    """An optional package is not installed; the message says how to install it."""


class RunError(UserError):
    """A run folder cannot be used; the one-line message says what to do."""
