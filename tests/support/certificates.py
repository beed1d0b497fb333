"""Certificates for a bus with TLS."""

from __future__ import annotations

import subprocess
from pathlib import Path

IN_TIME_S = 60.0


def certificates(folder: Path, address: str = "127.0.0.1") -> None:
    """An authority, and a certificate of it for an IP address."""
    extensions = folder / "san.txt"
    extensions.write_text(f"subjectAltName=IP:{address}\nbasicConstraints=CA:FALSE\n")
    new_key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    signed = ["-CAcreateserial", "-days", "2", "-extfile", extensions.name, "-out", "server.pem"]
    for command in (
        ["req", "-x509", *new_key, "-days", "2", "-subj", "/CN=test", "-keyout", "ca.key", "-out", "ca.pem"],
        ["req", *new_key, "-subj", "/CN=bus", "-keyout", "server.key", "-out", "server.csr"],
        ["x509", "-req", "-in", "server.csr", "-CA", "ca.pem", "-CAkey", "ca.key", *signed],
    ):
        subprocess.run(["openssl", *command], cwd=folder, check=True, capture_output=True)
