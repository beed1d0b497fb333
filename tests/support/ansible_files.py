"""Our Ansible collection: as it is built and installed, its modules and its templates."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
from pathlib import Path
from types import ModuleType
from typing import Any

import jinja2
import yaml  # type: ignore[import-untyped]

from tests.support.paths import ROOT
from tools.systems import System

ANSIBLE = ROOT / "ansible"
COLLECTION = "slackwater.slackwater"


def accepted_systems() -> dict[str, dict[str, str]]:
    """Title of a system -> what the roles know of it."""
    table = yaml.safe_load((ANSIBLE / "roles/slackwater_base/vars/main.yml").read_text())["slackwater_base_systems"]
    return {str(title): facts for title, facts in table.items()}


def php_of(system: System) -> str:
    """Version of its php-fpm."""
    return accepted_systems()[system.title]["php"]


def installed_collection(folder: Path) -> dict[str, str]:
    """Builds and installs the collection below `folder`; the environment in which Ansible finds it, and only it."""
    environment = os.environ | {
        "ANSIBLE_HOME": str(folder / "ansible"),
        "ANSIBLE_COLLECTIONS_PATH": str(folder / "collections"),
        "ANSIBLE_CONFIG": str(ANSIBLE / "ansible.cfg"),
        "ANSIBLE_NOCOLOR": "1",
        "LC_ALL": "C.UTF-8",
    }

    def galaxy(*words: str) -> None:
        subprocess.run(["ansible-galaxy", "collection", *words], env=environment, capture_output=True, check=True)

    galaxy("build", "--force", "--output-path", str(folder), str(ANSIBLE))
    (built,) = folder.glob("slackwater-*.tar.gz")
    galaxy("install", "--force", "--offline", str(built))
    return environment


def module(name: str, kind: str = "modules") -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ANSIBLE / "plugins" / kind / f"{name}.py")
    assert spec
    assert spec.loader
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def default_of(role: str, variable: str, **values: Any) -> str:
    """The default of a role's variable, where other variables have these values."""
    defaults = yaml.safe_load((ANSIBLE / "roles" / role / "defaults/main.yml").read_text())
    return _environment().from_string(defaults[variable]).render(**values)


def rendered(role: str, template: str, **values: Any) -> str:
    text = (ANSIBLE / "roles" / role / "templates" / template).read_text()
    return _environment().from_string(text).render(**values)


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(trim_blocks=True, undefined=jinja2.StrictUndefined, autoescape=False)
    environment.filters["to_json"] = json.dumps
    environment.filters["combine"] = lambda ours, more, **_: {
        key: {**ours.get(key, {}), **more.get(key, {})} for key in {*ours, *more}
    }
    environment.filters["regex_replace"] = lambda text, pattern, to: re.sub(pattern, to, text)
    environment.filters["extract"] = lambda key, place: place[key]
    environment.filters["bool"] = bool
    environment.filters[f"{COLLECTION}.before_port"] = module("addresses", "filter").before_port
    return environment
