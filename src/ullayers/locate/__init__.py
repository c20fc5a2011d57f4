"""Locating moving objects: from frames to masks, positions and tracks.

`flow` estimates optical flow and the motion of the camera. `scene` knows what a still camera sees
without objects, `moving` finds what moves relative to a moving camera, and `paths` links regions
into paths. `recording` does this for a whole recording, window by window, and `tracking` follows
several objects and settles who is who.
"""
