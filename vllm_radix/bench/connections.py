# SPDX-License-Identifier: Apache-2.0
"""How long connections to a server are kept, and how one that breaks is told of."""

KEEP_IDLE = 1.0
"""Seconds that an idle connection is kept for the next request.

vLLM's server closes it after 5 (``VLLM_HTTP_TIMEOUT_KEEP_ALIVE``), as long as httpx would keep it:
a request that is sent at that moment gets no answer.
"""

KEPT_LONG = {"VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "3600"}
"""In a server's environment: `vllm bench serve` keeps idle connections for a minute."""


def reason(error: BaseException) -> str:
    """What a request failed of, in one sentence, with what lies behind it."""
    text = (str(error) or type(error).__name__).rstrip(".")
    cause = error.__cause__
    if cause is None:
        return f"{text}."
    # "Connection error." has one for a server that is gone, and another for one that hung up.
    behind = ": ".join(filter(None, (type(cause).__name__, str(cause).rstrip("."))))
    return f"{text} ({behind})."
