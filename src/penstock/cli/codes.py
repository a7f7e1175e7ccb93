"""Exit codes: the same for every command."""

DONE = 0
FAILED = 1
WRONG_USE = 2
"""As argparse has it."""
NOT_RUNNING = 3
