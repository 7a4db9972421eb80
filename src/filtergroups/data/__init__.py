"""Data: what an example is, and the kinds of data that a config can name."""
