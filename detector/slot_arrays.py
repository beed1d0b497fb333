"""Arrays with a row for each slot. A slot is a node's place in all of the detector's arrays; slots are reused."""

from __future__ import annotations

from typing import Any

import numpy as np


class SlotArrays:
    """Base of classes with values for each slot. Their arrays grow together and are emptied together.

    A subclass annotates its arrays as attributes, (slots, ...) each, and gives the row of an empty slot to `__init__`.
    """

    def __init__(self, *parts: SlotArrays, **empty: Any) -> None:
        """`parts` are resized and emptied with this; `empty` is the row of an empty slot by attribute."""
        self._parts = parts
        self._empty = {name: np.asarray(row) for name, row in empty.items()}
        for name, row in self._empty.items():
            setattr(self, name, np.empty((0, *row.shape), dtype=row.dtype))

    def resize(self, slots: int) -> None:
        """Makes room for this number of slots; new slots are empty. It never shrinks."""
        for name, row in self._empty.items():
            array = getattr(self, name)
            if slots > len(array):
                new = np.broadcast_to(row, (slots - len(array), *row.shape))
                setattr(self, name, np.concatenate([array, new]))
        for part in self._parts:
            part.resize(slots)

    def forget(self, slot: int) -> None:
        """Empties a slot, for another node or since its node is gone."""
        for name, row in self._empty.items():
            getattr(self, name)[slot] = row
        for part in self._parts:
            part.forget(slot)
