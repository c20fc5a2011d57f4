"""The recurrence in parts: what it remembers, the plain loop, the covariance solves."""
