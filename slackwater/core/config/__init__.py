"""The controller's configuration: one TOML file, checked against the declared settings."""

from __future__ import annotations

from slackwater.core.config.balancers import ShownServer, declare, kind_of, look_at, place_in_words
from slackwater.core.config.description import describe
from slackwater.core.config.kinds import (
    ADDRESS_PATTERN,
    ConfigError,
    host_and_port,
    in_words,
    is_loopback,
    is_loopback_host,
)
from slackwater.core.config.node_changes import (
    BATCH_CORES,
    BATCH_RUNNING,
    NODE_POLICIES,
    NODE_POLICY,
    GovernorSettings,
    RetuneSettings,
)
from slackwater.core.config.otlp import OtlpSettings
from slackwater.core.config.reading import load, parse, read
from slackwater.core.config.replace import ReplaceSettings
from slackwater.core.config.settings import (
    CONTROL,
    CONTROLLER,
    BusSettings,
    ControllerSettings,
    DetectorSettings,
    JournalSettings,
    Law,
    LbengineSettings,
    OwnBusSettings,
    PoolSettings,
)
