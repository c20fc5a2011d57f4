"""The paper's experiments, one short file each, for `ul reproduce`."""
