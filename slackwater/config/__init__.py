"""The controller's configuration: one TOML file, checked against the declared settings."""

from __future__ import annotations

from slackwater.config.description import describe
from slackwater.config.reading import load, parse, use_new_names
from slackwater.config.settings import (
    ADDRESS_PATTERN,
    TCP,
    BusSettings,
    ConfigError,
    ControllerSettings,
    DetectorSettings,
    JournalSettings,
    Law,
    LbengineSettings,
    PoolSettings,
    RetuneSettings,
    host_and_port,
    place_in_words,
)
