"""The conformance suite of stores: what every :class:`PersistentBackingStore` must do.

A store of your own passes it when a subclass in your tests does::

    class TestMyStore(StoreConformance):
        @pytest.fixture
        def make_store(self, tmp_path):
            return functools.partial(MyStore, tmp_path / "data")

``make_store`` gives a callable without arguments. Every call opens a new handle on the same place,
which is empty when the test starts. When the store's capabilities say ``shared``, the
callable must be picklable: other processes call it too.

Half of the tests need the log capability. On a store without it they are skipped, and one test sees
to it that those calls raise ``NotSupported``.
"""

from __future__ import annotations

from penstock.testing.store_log import LogConformance
from penstock.testing.store_sharing import SharingConformance
from penstock.testing.store_values import ValueConformance


class StoreConformance(ValueConformance, LogConformance, SharingConformance):
    """All tests of stores. Subclass it and say how to make one: see the module's text."""
