"""Packs a folder again and again, as a backup does: the program of a job beside a web server. `pack.py FOLDER`."""

import sys
import tarfile

while True:
    with tarfile.open("/dev/null", "w:gz") as packed:
        packed.add(sys.argv[1])
