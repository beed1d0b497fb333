"""The settings of a pool that is a virtual service of keepalived."""

from __future__ import annotations

from typing import ClassVar

from slackwater.lbengine.backends.ipvs.settings import ServicePool


class KeepalivedPool(ServicePool, frozen=True, kw_only=True, tag_field="balancer", tag="keepalived"):
    """A service that keepalived owns."""

    title: ClassVar[str] = "keepalived"
    needs: ClassVar[str] = "which owns the IPVS table; needs `service`"
