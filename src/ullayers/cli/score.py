"""`ul score`: compare tracks with true positions."""
