"""The parts of `tools/bench_sniffer.py`."""
