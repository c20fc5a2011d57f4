"""Video files and images: opened, decoded and written.

`finding` finds sequences. `opening` opens a video file, camera, stream or URL, `decoding` yields
its frames with their times and numbers, and `seeking` finds a key frame to start from; `images`
reads folders of images. Callers use them through `sources.Source` and `access.FrameAccess`.
`writing` writes video files.
"""
