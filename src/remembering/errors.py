"""What a user can put right: the command prints it as one sentence, without a traceback."""


class RememberingError(Exception):
    """Wrong input or a wrong situation. The message says what, where, and what to do."""
