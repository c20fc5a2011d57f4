"""What `ul reproduce` can be asked for, in the order of the paper."""

NAMES = (
    "synthetic", "inplane", "pan", "pillow", "walk", "semi", "parts", "laplacian", "recognise",
    "layerwise",
)  # fmt: skip
