"""The experiments of `ul reproduce`, one module each.

`names` lists them, `common` holds what they share: the setting they run in, tables, claims and
scores. Every experiment has a function `run(setting) -> Outcome`.
"""
