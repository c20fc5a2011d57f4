"""Tracks in the file formats of other programs.

`write.py` has the table of formats; the other modules have one function per format, which takes the
videos of a results folder and the file to write. Packages of other programs are imported where they
are used.
"""
