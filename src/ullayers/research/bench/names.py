"""The parts of `ul bench`, in a module without imports so that the command starts quickly."""

PARTS = ("layers", "growth", "peers", "video")
