"""Video files, image folders, cameras and streams: from bytes to clips of frames, and back.

`recordings` reads video files, URLs and streams (with `decoding`, `seeking` and `remote`), `images`
reads image folders, and `capture` reads cameras, each with an optional time range and `region`.
`finding` searches folders for inputs. `reader` provides them all as `Source` and reads clips,
`single_frames` reads single frames, and `writer` writes video files. `camera_motion` estimates the
path of a moving camera, `follow` crops around the moving object, and `scene` renders a synthetic
video with ground truth.
"""
