"""An apt repository of our packages with a key made for the test."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.support.paths import ROOT


@dataclass(frozen=True)
class SigningKey:
    """A key of gpg's in a folder of its own."""

    home: Path
    address: str


def signing_key(home: Path) -> SigningKey:
    """Makes a key without a passphrase."""
    home.mkdir(mode=0o700)
    address = "packages@example.org"
    made = ("gpg", "--homedir", str(home), "--batch", "--pinentry-mode", "loopback", "--passphrase", "")
    subprocess.run([*made, "--quick-gen-key", address, "ed25519", "sign", "never"], check=True, capture_output=True)
    return SigningKey(home, address)


def apt_repository(packages: Path, out: Path, key: SigningKey) -> Path:
    """The repository of a folder of packages, as `make repo` makes it."""
    words = ["--packages", str(packages), "--out", str(out), "--key", key.address]
    command = [sys.executable, str(ROOT / "packaging/repository.py"), *words]
    environment = os.environ | {"GNUPGHOME": str(key.home)}
    try:
        subprocess.run(command, check=True, env=environment, capture_output=True, text=True)
    except subprocess.CalledProcessError as error:
        raise AssertionError(error.stderr) from None
    finally:
        subprocess.run(["gpgconf", "--kill", "gpg-agent"], env=environment, check=False)
    return out
