"""Learning from video: frames in, a trained network out.

`footage` reads small frames from sources, and `survey` looks at the camera first. `networks` has
the networks, `trials` trains one from a random start, `codes` does the same for codes, and
`training` lets several trials compete. `teaching` adds positions given by the user.
"""
