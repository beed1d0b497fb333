#!/usr/bin/python
"""A private key that is made where it is used and never leaves that host: an NKey of NATS, or a key for TLS."""

from __future__ import annotations

DOCUMENTATION = """
module: identity
short_description: Make a private key on the host that uses it
description:
  - Keys are made with the host's openssl and written with mode 0640; what is returned is public.
  - The module changes nothing when a key is there, unless C(renew) says so.
options:
  kind:
    description: C(nkey) is a user's key of NATS; C(tls) a key with a request for a certificate.
    choices: [nkey, tls]
    required: true
    type: str
  path: {description: The private key's file., required: true, type: path}
  owner: {description: Owner of the file., default: root, type: str}
  group: {description: Group that may read the file., default: root, type: str}
  renew: {description: Make a new key in place of the one that is there., default: false, type: bool}
  name: {description: The subject's common name (tls)., type: str}
  addresses: {description: Host names and IP addresses of the certificate (tls)., type: list, elements: str}
  certificate: {description: File with the certificate that goes with the key (tls)., type: path}
  authority: {description: Certificate of the authority (PEM) that the certificate must be of (tls)., type: str}
  valid_days: {description: A certificate that ends within so many days counts as absent (tls)., default: 30, type: int}
"""

import base64
import binascii
import grp
import os
import pwd
import subprocess
import sys
import tempfile

from ansible.module_utils.basic import AnsibleModule

try:
    from ansible_collections.slackwater.slackwater.plugins.module_utils.nkeys import USER, nkey_text
except ImportError:  # started from the source tree
    sys.path.append(os.path.join(os.path.dirname(os.path.realpath(__file__)), "../module_utils"))
    from nkeys import USER, nkey_text

SEED = 18 << 3
"""The first byte of a seed (S...), before the kind of its key."""

EC_KEY = ("genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256")


class Failed(Exception):
    """What could not be done, in words."""


def openssl(*words: str, data: bytes = b"", check: bool = True) -> subprocess.CompletedProcess[bytes]:
    try:
        done = subprocess.run(["openssl", *words], input=data, capture_output=True)
    except FileNotFoundError:
        raise Failed("openssl is not on this host; install Debian's package `openssl`") from None
    if check and done.returncode:
        raise Failed(f"openssl {words[0]}: {done.stderr.decode(errors='replace').strip()}")
    return done


def public_raw(private_der: bytes) -> bytes:
    return openssl("pkey", "-inform", "DER", "-pubout", "-outform", "DER", data=private_der).stdout[-32:]


def der_of(raw: bytes) -> bytes:
    """PKCS 8 of an Ed25519 key: RFC 8410."""
    return bytes.fromhex("302e020100300506032b657004220420") + raw


def new_nkey() -> bytes:
    raw = openssl("genpkey", "-algorithm", "ed25519", "-outform", "DER").stdout[-32:]
    return (nkey_text(bytes([SEED | USER >> 5, (USER & 31) << 3]), raw) + "\n").encode()


def public_nkey(seed: bytes) -> str:
    text = seed.decode(errors="replace").strip()
    try:
        body = base64.b32decode(text + "=" * (-len(text) % 8))
    except binascii.Error:
        body = b""
    if len(body) != 36 or not text.startswith("SU"):
        raise Failed("this file holds no seed of a user's NKey (SU...); remove it or give another path")
    return nkey_text(bytes([USER]), public_raw(der_of(body[2:34])))


def write(path: str, data: bytes, owner: str, group: str) -> None:
    """Whole or not at all, and never readable for others."""
    descriptor, fresh = tempfile.mkstemp(dir=os.path.dirname(path))
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        os.chown(fresh, pwd.getpwnam(owner).pw_uid, grp.getgrnam(group).gr_gid)
        os.chmod(fresh, 0o640)
        os.replace(fresh, path)
    except BaseException:
        os.unlink(fresh)
        raise


def certificate_fits(given: dict, private: bytes) -> bool:
    """Whether the certificate is of this key, of this authority, for these addresses, and for a while yet."""
    path = given["certificate"]
    if not path or not os.path.exists(path) or not given["authority"]:
        return False
    seconds = str(given["valid_days"] * 86400)
    if openssl("x509", "-in", path, "-noout", "-checkend", seconds, check=False).returncode:
        return False
    ours = openssl("pkey", "-pubout", data=private).stdout
    if openssl("x509", "-in", path, "-noout", "-pubkey").stdout != ours:
        return False
    with tempfile.NamedTemporaryFile() as authority:
        authority.write(given["authority"].encode())
        authority.flush()
        if openssl("verify", "-CAfile", authority.name, path, check=False).returncode:
            return False
    names = openssl("x509", "-in", path, "-noout", "-ext", "subjectAltName").stdout.decode()
    addresses = {part.strip().partition(":")[2] for line in names.splitlines()[1:] for part in line.split(",")}
    return addresses == set(given["addresses"] or [])


def request(given: dict, private: bytes) -> str:
    with tempfile.NamedTemporaryFile() as key:
        key.write(private)
        key.flush()
        return openssl("req", "-new", "-key", key.name, "-subj", f"/CN={given['name']}").stdout.decode()


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "kind": {"choices": ["nkey", "tls"], "required": True},
            "path": {"type": "path", "required": True},
            "owner": {"default": "root"},
            "group": {"default": "root"},
            "renew": {"type": "bool", "default": False},
            "name": {},
            "addresses": {"type": "list", "elements": "str"},
            "certificate": {"type": "path"},
            "authority": {},
            "valid_days": {"type": "int", "default": 30},
        },
        supports_check_mode=True,
        required_if=[("kind", "tls", ["name", "addresses", "certificate"])],
    )
    given = module.params
    path, kind = given["path"], given["kind"]
    try:
        there = os.path.exists(path)
        changed = given["renew"] or not there
        if changed and module.check_mode:
            # A key that would be made: its public half isn't known yet.
            module.exit_json(changed=True, public="", request="", wants_certificate=kind == "tls")
        if changed:
            data = new_nkey() if kind == "nkey" else openssl(*EC_KEY).stdout
            write(path, data, given["owner"], given["group"])
        with open(path, "rb") as file:
            private = file.read()
        status = os.stat(path)
        owned = (pwd.getpwnam(given["owner"]).pw_uid, grp.getgrnam(given["group"]).gr_gid)
        if (status.st_uid, status.st_gid) != owned or status.st_mode & 0o777 != 0o640:
            changed = True
            if not module.check_mode:
                os.chown(path, *owned)
                os.chmod(path, 0o640)
        if kind == "nkey":
            module.exit_json(changed=changed, public=public_nkey(private))
        wants = not certificate_fits(given, private)
        module.exit_json(changed=changed, wants_certificate=wants, request=request(given, private) if wants else "")
    except (Failed, KeyError, OSError) as error:
        module.fail_json(msg=f"{path}: {error}")


if __name__ == "__main__":
    main()
