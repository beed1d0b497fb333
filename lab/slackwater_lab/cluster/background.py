"""A thread that works while a context manager is entered."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from typing import Self

from slackwater_lab.cluster.paths import LabError


class Background(ABC):
    """`_run` is started as it is entered, and is waited for at the end, which sets `_end`."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._error: Exception | None = None
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)

    def _work(self) -> None:
        try:
            self._run()
        except Exception as error:  # `check` tells it to who waits
            self._error = error

    @abstractmethod
    def _run(self) -> None:
        """Returns soon after `_end` is set."""

    def check(self) -> None:
        """Raises LabError when it could not go on."""
        if self._error is not None:
            raise LabError(f"{self._name} cannot go on: {self._error}") from self._error

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()
