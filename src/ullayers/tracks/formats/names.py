"""Names of formats, for a command line that does not import torch."""

FORMATS = ("csv", "movement", "sleap", "dlc", "mot", "coco", "nwb", "napari", "parquet")


EXPORT_FOLDER = "export"
