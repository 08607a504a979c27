"""Check that the model hub can be reached before a download.

The hub's client retries for half a minute and prints every attempt; this check fails in seconds.
"""

from __future__ import annotations

import urllib.error
import urllib.request

TIMEOUT_SECONDS = 5


def reachable() -> bool:
    """Return whether the hub responds (through a proxy, if one is configured)."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return False
    try:
        with urllib.request.urlopen(constants.ENDPOINT, timeout=TIMEOUT_SECONDS):
            return True
    except urllib.error.HTTPError:
        return True  # the server responded, even if not with the page
    except (urllib.error.URLError, OSError):
        return False
