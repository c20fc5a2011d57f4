"""Learning from video: configuration, networks, the training loop, run folders.

`footage` reads small frames from sources, `models` are the networks, `trainer` and `training` train
them, `runs` plans and loads run folders, `run_training` trains a run, `apply` applies a finished
run to new video, and `online` learns while frames arrive.
"""
