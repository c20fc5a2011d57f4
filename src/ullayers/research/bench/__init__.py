"""Benchmarks of speed, memory and quality: `ul bench`.

`run` measures the parts named in `names`; each part is a module that yields rows (`rows`) and
formats them (`line`). Competing methods are always measured side by side in one run.
"""
