"""A reader in a new interpreter: work arrives on stdin, messages go to stdout."""

from __future__ import annotations

import os
import pickle
import sys

from torchgauge.isolation.channel import Channel
from torchgauge.isolation.reader import close_inherited_files, read

if __name__ == "__main__":
    channel = Channel(os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb"))
    os.dup2(2, 1)  # what is printed must not mix with messages
    work = channel.receive()
    if work is None:
        sys.exit(1)
    close_inherited_files(channel.files)
    # Sent by the parent, which is trusted; messages in the other direction are not.
    job, limits, importers = pickle.loads(work.payload)
    for import_package in importers:
        import_package()
    read(channel, job, limits)
