"""What was found: the table of tracks and codes, and everything that follows from it.

`table` has the rows of sequences, `reading` and `tracked_video` read them from a results folder,
and `masks` has outlines and label images. Measures, behaviour, corrections, scores and the formats
of other programs are functions of these. Rows come in from `locate` and `run`; `report`, `run` and
`studio` read them.
"""
