"""The `ul` command; no other package imports it.

`main` parses the command line (`parser`, `options`), imports the module of the command (`demo`,
`learn`, `apply`, `watch`, ...) and calls its function `run`. `messages` is what the user reads at
the end, and decides the exit code.
"""
