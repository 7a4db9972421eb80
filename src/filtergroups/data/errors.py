"""What goes wrong with a user's data; apart from the rest, so that decoding images needs no torch."""


class DataError(ValueError):
    """Something wrong with a user's data: one line, with the file or column and what to do."""
