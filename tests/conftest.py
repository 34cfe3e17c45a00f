"""What every test may take for granted, however the run was started."""

from __future__ import annotations

import signal

# `make proof &` in a script: the shell has its children ignore Ctrl-C, and ours would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
