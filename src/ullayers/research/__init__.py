"""Data sets, baselines, experiments (`ul reproduce`) and benchmarks (`ul bench`).

Data sets and baselines feed the experiments; `reproduce` runs experiments and writes their page.
The benchmarks are independent of both. No other package but `cli` imports this one.
"""
