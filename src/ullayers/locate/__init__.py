"""Locating moving objects without training: from frames to masks.

`flow` estimates optical flow and the motion of the camera, `evidence` measures how much each pixel
moves relative to the camera, `consensus` spreads this evidence between similar cells of the video
by a random walk (the Markov chain of the closed form), and `segment` turns the result into masks
and positions.
"""
