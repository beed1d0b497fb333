"""A certificate for the bus, and the private authority that signs it, where a site has none. Ansible makes the same in
`ansible/plugins/modules/authority.py`, which must run without this package.

The authority's key stays beside them, closed to all but its owner: the next certificate is signed with it, so the nodes
keep trusting what they have.
"""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from slackwater.core.files import bytes_of

AUTHORITY_DAYS, CERTIFICATE_DAYS = 3650, 825
RENEW_DAYS = 30
"""A certificate that ends within this time is signed anew."""
PRIVATE, FOR_THE_SERVICE, FOR_ALL = 0o600, 0o640, 0o644

Write = Callable[[Path, str, int], None]
"""Writes a file whole or not at all: (file, text, mode)."""


class AuthorityError(Exception):
    """No certificate can be made; the text says why."""


@dataclass(frozen=True)
class AuthorityFiles:
    """Where the files of the authority and of the host's certificate are."""

    folder: Path

    @property
    def certificate(self) -> Path:
        return self.folder / "bus.pem"

    @property
    def key(self) -> Path:
        return self.folder / "bus.key"

    @property
    def authority(self) -> Path:
        return self.folder / "authority.pem"

    @property
    def authority_key(self) -> Path:
        return self.folder / "authority.key"


def name_of(host: str) -> x509.GeneralName:
    """A host as a certificate names it. Raises AuthorityError for a host that stands for every address."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return x509.DNSName(host)
    if address.is_unspecified:
        raise AuthorityError(f"{host} is no address that a certificate can be for; name the one that the others reach")
    return x509.IPAddress(address)


def ensure(
    files: AuthorityFiles, host: str, write: Write, now: datetime.datetime
) -> tuple[list[Path], datetime.datetime]:
    """A certificate for this host: the files that were made, and until when it is valid. What is there and fits stays.

    Raises AuthorityError, OSError.
    """
    name = name_of(host)
    made: list[Path] = []
    if files.authority.exists() != files.authority_key.exists():
        missing, alone = sorted((files.authority, files.authority_key), key=Path.exists)
        raise AuthorityError(f"{alone} is there without {missing}; put it back, or move the other one away")
    if not files.authority.exists():
        certificate, key = _authority(now)
        write(files.authority_key, _key_text(key), PRIVATE)
        write(files.authority, _text(certificate), FOR_ALL)
        made += [files.authority, files.authority_key]
    else:
        certificate, key = _read(files)
    if (there := _fitting(files, name, certificate, now)) is not None:
        return made, there.not_valid_after_utc
    own = ec.generate_private_key(ec.SECP256R1())
    signed = _signed(own, host, name, certificate, key, now)
    write(files.key, _key_text(own), FOR_THE_SERVICE)
    write(files.certificate, _text(signed), FOR_ALL)
    return [*made, files.certificate, files.key], signed.not_valid_after_utc


def _authority(now: datetime.datetime) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    """An authority that may sign hosts' certificates and nothing else."""
    key = ec.generate_private_key(ec.SECP256R1())
    who = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Slackwater")])
    usage = x509.KeyUsage(
        digital_signature=False, content_commitment=False, key_encipherment=False, data_encipherment=False,
        key_agreement=False, key_cert_sign=True, crl_sign=True, encipher_only=False, decipher_only=False,
    )  # fmt: skip
    built = _builder(who, who, key, now, AUTHORITY_DAYS)
    built = built.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    return built.add_extension(usage, critical=True).sign(key, hashes.SHA256()), key


def _signed(
    own: ec.EllipticCurvePrivateKey, host: str, name: x509.GeneralName, authority: x509.Certificate,
    key: ec.EllipticCurvePrivateKey, now: datetime.datetime,
) -> x509.Certificate:  # fmt: skip
    uses = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host[:64])])
    issuer_key = x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key())
    return (
        _builder(subject, authority.subject, own, now, CERTIFICATE_DAYS)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
        .add_extension(x509.SubjectAlternativeName([name]), critical=False)
        .add_extension(issuer_key, critical=False)
        .sign(key, hashes.SHA256())
    )


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, now: datetime.datetime, days: int
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _read(files: AuthorityFiles) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    try:
        certificate = x509.load_pem_x509_certificate(bytes_of(files.authority))
        key = serialization.load_pem_private_key(bytes_of(files.authority_key), None)
    except (ValueError, TypeError) as error:
        raise AuthorityError(f"{files.authority}, {files.authority_key}: cannot be used: {error}") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        raise AuthorityError(f"{files.authority_key}: not the key of {files.authority}")
    return certificate, key


def _fitting(
    files: AuthorityFiles, name: x509.GeneralName, authority: x509.Certificate, now: datetime.datetime
) -> x509.Certificate | None:
    """The certificate that is there, if this authority signed it for this key and host, and it is valid for a while
    yet."""
    try:
        certificate = x509.load_pem_x509_certificate(bytes_of(files.certificate))
        key = serialization.load_pem_private_key(bytes_of(files.key), None)
        certificate.verify_directly_issued_by(authority)
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except Exception:  # whatever is wrong with it, it is signed anew
        return None
    lasts = certificate.not_valid_after_utc - now > datetime.timedelta(days=RENEW_DAYS)
    return certificate if key.public_key() == certificate.public_key() and name in list(names) and lasts else None


def _text(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def _key_text(key: ec.EllipticCurvePrivateKey) -> str:
    form = serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()).decode()
