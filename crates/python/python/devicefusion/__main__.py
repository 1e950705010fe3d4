# SPDX-License-Identifier: Apache-2.0
"""The SQL shell: `python -m devicefusion`."""

import signal
import sys

from devicefusion import _devicefusion

if __name__ == "__main__":
    # The shell stops queries by Ctrl-C itself.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(_devicefusion.shell(["devicefusion", *sys.argv[1:]]))
