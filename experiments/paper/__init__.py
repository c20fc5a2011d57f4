"""The experiments of the paper and further ones: one module each, with `run(setting) -> Outcome`.

`experiments.common` holds what they share: the setting they run in, tables, claims and scores.
`gridworlds` and `slow_training` serve `laplacian`; `heads` and `runs` serve several.
"""

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
)  # in the order of the paper
