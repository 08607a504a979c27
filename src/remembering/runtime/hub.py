"""Is the model hub there? Asked once before a download, so that offline fails in a second.

Left to itself, the hub's client retries for half a minute and prints each try.
"""

from __future__ import annotations

import urllib.error
import urllib.request

SECONDS = 5


def reachable() -> bool:
    """Whether the hub answers at all (through a proxy, if one is set up)."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return False
    try:
        with urllib.request.urlopen(constants.ENDPOINT, timeout=SECONDS):
            return True
    except urllib.error.HTTPError:
        return True  # an answer, if not the page
    except (urllib.error.URLError, OSError):
        return False
