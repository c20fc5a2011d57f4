"""Optional packages, imported on first use."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from ullayers.errors import MissingPackageError


def load(extra: str, *names: str) -> tuple[Any, ...]:
    """Import modules of an extra of this package.

    Args:
        extra: The extra in pyproject.toml.
        *names: Modules to import.

    Raises:
        MissingPackageError: A package is not installed.

    Example:
        >>> load("nwb", "a_package_that_is_missing")
        Traceback (most recent call last):
        ullayers.errors.MissingPackageError: this needs the package a_package_that_is_missing: pip
        install 'ullayers[nwb]'
    """
    try:
        return tuple(map(import_module, names))
    except ModuleNotFoundError as error:
        raise MissingPackageError(
            f"this needs the package {error.name}: pip install 'ullayers[{extra}]'"
        ) from error
