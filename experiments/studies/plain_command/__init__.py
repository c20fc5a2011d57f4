"""Scores of the plain command, `ul learn INPUT --out RUN`, on every data set with ground truth.

    python -m experiments.studies.plain_command [--only walk ...] [--seeds 3] [--json FILE]

`data_sets` prepares the inputs, `command` runs `ul` in subprocesses, `scores` scores
tracks and masks, and `mog2` finds the best that OpenCV's background subtraction can do on the same
frames. The truth is used to score, and to choose the settings of OpenCV in its favour.
"""
