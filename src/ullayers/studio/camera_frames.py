"""Format in which frames of the browser's camera are sent to the training process."""

from __future__ import annotations

import struct

HEADER = struct.Struct("<II d")  # sequence number, zero, seconds; a JPEG follows
LENGTH = struct.Struct("<I")  # of a header with its JPEG, before it
MAX_FRAME_BYTES = 2**22
