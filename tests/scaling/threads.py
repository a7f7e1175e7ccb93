"""Threads for tests."""

import threading


class running:  # noqa: N801
    """A thread for the body of a with statement; its error is raised at the end."""

    def __init__(self, function) -> None:
        self.function = function
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self.run)

    def run(self) -> None:
        try:
            self.function()
        except BaseException as error:
            self.error = error

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_) -> None:
        self.thread.join(50)
        assert not self.thread.is_alive()
        if self.error is not None:
            raise self.error
