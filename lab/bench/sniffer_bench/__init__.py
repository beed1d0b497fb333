"""The stage of the sniffer's benchmark: captures and traffic."""
