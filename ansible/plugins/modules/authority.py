#!/usr/bin/python
"""The site's private certificate authority: made once, and signing requests. Runs where Ansible runs."""

from __future__ import annotations

DOCUMENTATION = """
module: authority
short_description: Make a private certificate authority, or sign a request with it
description:
  - A new authority comes with the controllers' key for Orders.
  - Uses the cryptography package, which ansible-core itself needs. Keys come and go as values, never as files.
options:
  name: {description: Common name of what is made., default: Slackwater, type: str}
  valid_days: {description: How long what is made is valid., default: 825, type: int}
  request: {description: The request (PEM) to sign; without it a new authority is made., type: str}
  addresses: {description: Host names and IP addresses that the certificate is for., type: list, elements: str}
  certificate: {description: The authority's certificate (PEM)., type: str}
  key: {description: The authority's private key (PEM)., type: str}
"""

import datetime
import ipaddress

from ansible.module_utils.basic import AnsibleModule

try:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
except ImportError:
    x509 = None


def pem(key) -> str:
    form = serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()).decode()


def text(certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def builder(subject, issuer, public_key, valid_days: int):
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=valid_days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
    )


def common_name(name: str):
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def authority(name: str, valid_days: int) -> tuple[str, str]:
    """Certificate and key of a new authority that may sign hosts' certificates and nothing else."""
    key = ec.generate_private_key(ec.SECP256R1())
    who = common_name(name)
    usage = {"digital_signature": False, "content_commitment": False, "key_encipherment": False}
    usage |= {"data_encipherment": False, "key_agreement": False, "encipher_only": False, "decipher_only": False}
    certificate = (
        builder(who, who, key.public_key(), valid_days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.KeyUsage(key_cert_sign=True, crl_sign=True, **usage), critical=True)
        .sign(key, hashes.SHA256())
    )
    return text(certificate), pem(key)


def orders_key() -> tuple[str, str]:
    """The controllers' key for Orders, and its public half."""
    key = ed25519.Ed25519PrivateKey.generate()
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return pem(key), key.public_key().public_bytes(serialization.Encoding.PEM, form).decode()


def name_of(address: str):
    try:
        return x509.IPAddress(ipaddress.ip_address(address))
    except ValueError:
        return x509.DNSName(address)


def sign(request_pem: str, name: str, addresses: list[str], certificate_pem: str, key_pem: str, valid_days: int) -> str:
    """A certificate for server and client use: the bus's servers are both to each other.

    Of the request, which another host wrote, only the public key counts.
    """
    request = x509.load_pem_x509_csr(request_pem.encode())
    issuer = x509.load_pem_x509_certificate(certificate_pem.encode())
    key = serialization.load_pem_private_key(key_pem.encode(), None)
    if not request.is_signature_valid:
        raise ValueError("the request's own signature is wrong")
    uses = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    certificate = (
        builder(common_name(name), issuer.subject, request.public_key(), valid_days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
        .add_extension(x509.SubjectAlternativeName([name_of(address) for address in addresses]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return text(certificate)


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "name": {"default": "Slackwater"},
            "valid_days": {"type": "int", "default": 825},
            "request": {},
            "addresses": {"type": "list", "elements": "str"},
            "certificate": {},
            "key": {"no_log": True},
        },
        supports_check_mode=True,
        required_by={"request": ["addresses", "certificate", "key"]},
    )
    given = module.params
    if x509 is None:
        module.fail_json(msg="Python's cryptography package is needed where Ansible runs; ansible-core depends on it")
    if not given["request"]:
        certificate, key = authority(given["name"], given["valid_days"])
        orders, orders_public = orders_key()
        module.exit_json(
            changed=True, certificate=certificate, key=key, orders_key=orders, orders_public_key=orders_public
        )
    try:
        names = "request", "name", "addresses", "certificate", "key", "valid_days"
        module.exit_json(changed=True, certificate=sign(*(given[name] for name in names)))
    except ValueError as error:
        module.fail_json(msg=f"the certificate cannot be signed: {error}")


if __name__ == "__main__":
    main()
