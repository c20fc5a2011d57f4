"""What `ul bench` can measure; alone here, so that the command need not load it to name it."""

PARTS = ("layers", "growth", "peers", "video")
