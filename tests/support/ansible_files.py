"""Our Ansible modules and templates."""

from __future__ import annotations

import importlib.util
import json
import re
from types import ModuleType
from typing import Any

import jinja2

from tests.support.paths import ROOT

ANSIBLE = ROOT / "ansible"


def module(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ANSIBLE / "library" / f"{name}.py")
    assert spec
    assert spec.loader
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def rendered(role: str, template: str, **values: Any) -> str:
    environment = jinja2.Environment(trim_blocks=True, undefined=jinja2.StrictUndefined, autoescape=False)
    environment.filters["to_json"] = json.dumps
    environment.filters["combine"] = lambda ours, more, **_: {
        key: {**ours.get(key, {}), **more.get(key, {})} for key in {*ours, *more}
    }
    environment.filters["regex_replace"] = lambda text, pattern, to: re.sub(pattern, to, text)
    environment.filters["extract"] = lambda key, place: place[key]
    environment.filters["bool"] = bool
    return environment.from_string((ANSIBLE / "roles" / role / "templates" / template).read_text()).render(**values)
