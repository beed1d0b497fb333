"""The examples of docs/reference/hooks.md, with stand-ins for the clouds' programs: what is asked of them, in order."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT

EXAMPLES = re.findall(r"```sh\n(#!/bin/sh\n.*?)```", (ROOT / "docs/reference/hooks.md").read_text(), re.DOTALL)
ABOUT = {"event": "replace", "pool": "web", "node": "web2", "servers": ["s2"], "zone": "zone-b", "machine_type": None}
CLOUD = """#!{python}
import os, sys
with open({log!r}, "a") as log:
    print(os.path.basename(sys.argv[0]), *sys.argv[1:], file=log)
if "describe-instances" in sys.argv:
    print("i-0abc")
sys.exit({fails!r} in sys.argv)
"""
JQ = """#!{python}
import json, sys
print(json.load(sys.stdin)[sys.argv[-1].lstrip(".")])
"""


def called(folder: Path, example: str, fails: str = "") -> tuple[int, list[str]]:
    """The example's exit status, and the calls that it made."""
    log = folder / "log"
    for name in ("aws", "gcloud", "openstack", "jq"):
        text = JQ if name == "jq" else CLOUD
        (folder / name).write_text(text.format(python=sys.executable, log=str(log), fails=fails))
        (folder / name).chmod(0o755)
    script = folder / "replace"
    script.write_text(example)
    script.chmod(0o755)
    path = f"{folder}:/usr/bin:/bin"
    done = subprocess.run([script], input=json.dumps(ABOUT), text=True, env={"PATH": path}, timeout=60, check=False)
    return done.returncode, log.read_text().splitlines()


def example_of(word: str) -> str:
    example: str
    (example,) = [text for text in EXAMPLES if word in text]
    return example


def test_aws_the_instance_of_the_nodes_name_is_ended_and_its_group_starts_another(tmp_path: Path) -> None:
    status, calls = called(tmp_path, example_of("aws"))
    assert status == 0
    assert "Name=tag:Name,Values=web2 Name=instance-state-name,Values=running" in calls[0]
    assert calls[1:] == [
        "aws autoscaling terminate-instance-in-auto-scaling-group --instance-id i-0abc"
        " --no-should-decrement-desired-capacity",
        "aws ec2 wait instance-terminated --instance-ids i-0abc",
    ]


def test_gcp_the_instance_is_made_anew_in_its_zone(tmp_path: Path) -> None:
    status, calls = called(tmp_path, example_of("gcloud"))
    group = "gcloud compute instance-groups managed"
    assert (status, calls) == (
        0,
        [
            f"{group} recreate-instances web --instances=web2 --zone=zone-b",
            f"{group} wait-until web --stable --zone=zone-b",
        ],
    )


def test_openstack_the_server_leaves_its_host_and_is_scheduled_anew(tmp_path: Path) -> None:
    status, calls = called(tmp_path, example_of("openstack"))
    assert (status, calls) == (
        0,
        ["openstack server shelve --offload --wait web2", "openstack server unshelve --wait web2"],
    )


@pytest.mark.parametrize(
    ("word", "fails"),
    [("aws", "autoscaling"), ("gcloud", "recreate-instances"), ("openstack", "shelve")],
    ids=["aws", "gcp", "openstack"],
)
def test_what_the_cloud_refuses_is_a_failure_and_nothing_follows(tmp_path: Path, word: str, fails: str) -> None:
    status, calls = called(tmp_path, example_of(word), fails)
    assert status != 0
    assert fails in calls[-1]
