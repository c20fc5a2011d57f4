"""Video files, image folders, cameras and streams: from bytes to clips of frames, and back.

`recordings` reads video files, URLs and streams (with `decoding`, `seeking` and `remote`), `images`
image folders and `capture` cameras, each a range of time and a `region` of them; `finding` looks
for them in folders. `reader` puts them all behind `Source` and reads clips, `single_frames` reads
single frames, and `writer` writes video files. `camera_motion` estimates the path of a moving
camera, `follow` crops around what moves, and `scene` renders a synthetic video with known truth.
"""
