"""Objects before a moving camera: evidence of motion, and its outlines."""
