"""The scene of a still camera, and evidence against it."""
