"""The support bundle: one archive for a bug report, limited in size, with secrets removed."""
