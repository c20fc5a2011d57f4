"""Video files, image folders, cameras and streams: from bytes to clips of frames, and back.

`sources.find_sources` finds the sequences in files, folders and patterns, and `Source.clips` reads
them: `files` opens, decodes and converts frames (or `camera.capture` a camera), `parallel` prepares
them ahead in a thread, in arrays from `memory`, and they leave as clips (`clips.Clip`), with the
options of `clips.Reading`, of a `region` of interest if there is one. `access` reads single frames
by their number. `camera` estimates the path of a moving camera and crops around the moving object,
`files.writing` writes video files, and `demo_films` renders videos with ground truth.
"""
