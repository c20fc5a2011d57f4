"""Video files, image folders, cameras and streams: from bytes to clips of frames, and back.

`frames` decodes, `capture` reads cameras and live streams, `reader` puts both behind `Source` and
cuts clips, and `single_frames` seeks. `camera_motion` estimates the path of a moving camera,
`follow` crops around what moves, and `scene` renders a synthetic video with known truth.
"""
