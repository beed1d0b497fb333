"""The lab's bus: TLS and a user for each part, as at a site whose nodes are other machines."""

from __future__ import annotations

import datetime
import ipaddress
import shutil
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePrivateKey, generate_private_key
from cryptography.x509.oid import NameOID

from slackwater.core.bus import nats_server
from slackwater.core.bus.config import WSENGINE, ListedNode
from slackwater.core.config import BusSettings, ControllerSettings
from slackwater.core.files import write_secret
from slackwater_lab.cluster.hosts import BRIDGE_ADDRESS, Host
from slackwater_lab.cluster.hosts import POOL as POOL
from slackwater_lab.cluster.paths import LAB_DIR

STATE_DIR = LAB_DIR / "slackwater"
AUTHORITY_FILE = LAB_DIR / "bus-authority.pem"
CERTIFICATE_FILE = LAB_DIR / "bus.pem"
KEY_FILE = LAB_DIR / "bus.key"
SITE = ControllerSettings(
    pool=[],
    state_dir=str(STATE_DIR),
    bus=BusSettings(
        listen=f"{BRIDGE_ADDRESS}:14222",
        tls_cert=str(CERTIFICATE_FILE),
        tls_key=str(KEY_FILE),
        tls_ca=str(AUTHORITY_FILE),
    ),
)
"""The settings of the lab's controller for its bus."""
VALID = datetime.timedelta(days=30)


def prepare(lab_hosts: Sequence[Host]) -> None:
    """Makes the bus's certificate, unless it is there, and its users: the controller's, and those of all hosts."""
    certify()
    nats_server.change_nodes(SITE, lambda _: [ListedNode(host.pool, host.name) for host in lab_hosts])


def forget(state_dir: Path = STATE_DIR) -> None:
    """Deletes all that Slackwater knows from an earlier run. The users keep their passwords: guests cache the files."""
    kept = ControllerSettings(pool=[], state_dir=str(state_dir)).bus_folder
    for path in state_dir.iterdir() if state_dir.exists() else ():
        if path.is_dir() and path != kept:
            shutil.rmtree(path)
        elif not path.is_dir():
            path.unlink()


def controller_section() -> str:
    """The section of the controller's file."""
    bus = SITE.bus
    return (
        f'[bus]\nlisten = "{bus.listen}"\ntls_cert = "{bus.tls_cert}"\ntls_key = "{bus.tls_key}"\n'
        f'tls_ca = "{bus.tls_ca}"\n'
    )


def monitor_section(host: Host) -> str:
    """The section of the file of a host's monitor."""
    return _section(host.name)


def wsengine_section(host: Host) -> str:
    """The section of the file of a host's wsengine."""
    return _section(WSENGINE + host.name)


def _section(user: str) -> str:
    return f"[bus]\n{section_of(SITE, user, SITE.bus.address)}\n"


def as_node(settings: ControllerSettings, user: str, url: str) -> BusSettings:
    """A controller's bus as this user logs in to it, at a URL with TLS that leads there."""
    password_file = settings.bus_folder / "passwords" / f"{user}.password"
    return BusSettings(url, user=user, password_file=str(password_file), tls_ca=str(AUTHORITY_FILE))


def section_of(settings: ControllerSettings, user: str, url: str) -> str:
    """The same in a file."""
    bus = as_node(settings, user, url)
    return f'url = "{bus.url}"\nuser = "{bus.user}"\npassword_file = "{bus.password_file}"\ntls_ca = "{bus.tls_ca}"'


def certify() -> None:
    """A certificate for the bridge's address, unless it is there, signed by an authority that is forgotten at once."""
    if CERTIFICATE_FILE.exists():
        return
    authority, key = generate_private_key(SECP256R1()), generate_private_key(SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Slackwater's lab")])
    is_authority = x509.BasicConstraints(ca=True, path_length=0)
    own = _certificate(name, name, authority).add_extension(is_authority, critical=True)
    names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(BRIDGE_ADDRESS))])
    bus = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, BRIDGE_ADDRESS)])
    signed = _certificate(bus, name, key).add_extension(names, critical=False)
    pem = serialization.Encoding.PEM
    AUTHORITY_FILE.write_bytes(own.sign(authority, hashes.SHA256()).public_bytes(pem))
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    write_secret(KEY_FILE, private.decode())
    CERTIFICATE_FILE.write_bytes(signed.sign(authority, hashes.SHA256()).public_bytes(pem))


def _certificate(subject: x509.Name, issuer: x509.Name, key: EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + VALID)
    )
