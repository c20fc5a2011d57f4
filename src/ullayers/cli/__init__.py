"""The `ul` command; no other package imports it.

`main` parses the command line (`parser`, `options`), imports the module of the command (`demo`,
`learn`, `apply`, `watch`, ...) and calls its function `run`. `signals` and `failures` decide how a
command ends; `progress`, `view` and `summary` are what the user sees.
"""
