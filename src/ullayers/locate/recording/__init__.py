"""Whole recordings of still, hand-held and moving cameras, window by window."""
