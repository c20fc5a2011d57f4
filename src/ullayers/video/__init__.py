"""Video files, image folders, cameras and streams: from bytes to clips of frames, and back.

`decoding` reads video files and streams, `images` image folders and `capture` cameras; `finding`
looks for them in folders. `reader` puts them all behind `Source` and reads clips, `single_frames`
reads single frames, and `writer` writes video files. `camera_motion` estimates the path of a moving
camera, `follow` crops around what moves, and `scene` renders a synthetic video with known truth.
"""
