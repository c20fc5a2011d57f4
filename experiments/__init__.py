"""Experiments and benchmarks, which are not part of the installed package.

    python -m experiments walk pan --data DIR --out FOLDER    experiments of `paper`
    python -m experiments.bench all                           benchmarks
    python -m experiments.studies.NAME                        single measurements of the docs

Run them in the root of the repository. `datasets` reads the public data sets, `baselines` are other
methods, `runner` runs experiments and writes their page, results.md.
"""
