"""Single measurements, one file each, that the documentation quotes: `python -m` runs them."""
