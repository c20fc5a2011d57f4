"""The experiments of `ul reproduce`, in the order of the paper."""

NAMES = (
    "synthetic",
    "inplane",
    "pan",
    "pillow",
    "walk",
    "semi",
    "parts",
    "laplacian",
    "recognise",
    "layerwise",
)
