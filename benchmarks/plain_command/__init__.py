"""Scores of the plain command, `ul learn INPUT --out RUN`, on every data set with ground truth.

    python -m benchmarks.plain_command [--only walk davis/dog ...] [--seeds 3] [--json FILE]

`data_sets` and `films` prepare the inputs, `command` runs `ul` in subprocesses, `truth` scores
tracks and masks, and `mog2` finds the best that OpenCV's background subtraction can do on the same
frames. The truth is used to score, and to choose the settings of OpenCV in its favour.
"""
