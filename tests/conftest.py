"""What all tests need: the commands under test must hear Ctrl-C."""

import signal

# A shell that runs tests in the background has them ignore SIGINT; commands that they start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
