"""Learning from video: configuration, networks, the training loop, run folders.

`footage` samples small frames from sources, `models` are the networks, `training` trains them,
`runs` manages the run folder, `apply` evaluates a finished run on new video, and `online` learns
while frames arrive.
"""
