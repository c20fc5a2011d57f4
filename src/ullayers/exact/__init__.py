"""Closed-form solutions of the same objective, without a network.

`markov` builds transition matrices and solves the normalized-cut eigenproblem with `eigen`.
`slow_features` is the linear case, as a scikit-learn estimator on top of `slow_moments`.
"""
