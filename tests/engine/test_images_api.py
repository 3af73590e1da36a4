# SPDX-License-Identifier: Apache-2.0
"""Images over the OpenAI API: the same answers as without a cache, and fewer images encoded."""

import re
from pathlib import Path
from typing import Any

import openai
import pytest

from vllm_radix.bench.server import Server, vllm_serve

from . import models
from .engines import LOGPROB_TOLERANCE
from .images import Picture

pytestmark = pytest.mark.engine

FLAGS = (
    *("--dtype", "float32", "--enforce-eager", "--block-size", "32", "--max-model-len", "1024"),
    *("--num-gpu-blocks-override", "100", "--enable-logging-iteration-details"),
    # What is encoded is kept in so small a place that a second image takes that of the first.
    *("--max-num-batched-tokens", "128"),
)
ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_LOGGING_LEVEL": "INFO",
    # The model is tiny: more threads would wait for one another.
    "OMP_NUM_THREADS": "1",
}
ARMS = {
    "off": ("--no-enable-prefix-caching",),
    "radix": ("--scheduler-cls", "vllm_radix.Scheduler"),
}
A, B, C = (Picture(seed) for seed in range(3))
NAMED = Picture(3, identifier="the third page")
# What is shown and asked one after the other, each in a conversation of its own.
QUESTIONS: list[tuple[Picture | str, ...]] = [
    (A, "What is it?"),
    (B, "What is it?"),
    (A, "What colour is it?"),
    (A, B, "What do they have in common?"),
    (A, C, "What do they have in common?"),
    (B, A, "What do they have in common?"),
    (A, C, "Which is the larger one?"),
    (A, A, "Are they the same?"),
    (NAMED, "What is it?"),
    (NAMED, "What colour is it?"),
    ("Before it: ", NAMED, "What colour is it?"),
]
# Those whose KV is not cached; but the last one that was encoded is still there. That is B for the
# fourth question, A for the one that has it twice, and the one with a name behind other text.
NEW_IMAGES = 1 + 1 + 0 + 0 + 1 + 1 + 0 + 0 + 1 + 0 + 0

Answer = tuple[list[str], list[float]]


def ask(client: openai.OpenAI, question: tuple[Picture | str, ...]) -> Answer:
    content: list[dict[str, Any]] = [
        {"type": "text", "text": part}
        if isinstance(part, str)
        else {"type": "image_url", "image_url": {"url": part.url()}, "uuid": part.identifier}
        for part in question
    ]
    messages: Any = [
        {"role": "system", "content": "Look closely and answer in one word."},
        {"role": "user", "content": content},
    ]
    answer = client.chat.completions.create(
        model="tiny",
        messages=messages,
        max_tokens=6,
        temperature=0,
        logprobs=True,
        extra_body={"ignore_eos": True, "return_tokens_as_token_ids": True},
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None and logprobs.content is not None
    return [one.token for one in logprobs.content], [one.logprob for one in logprobs.content]


def test_images_over_the_api(tmp_path: Path) -> None:
    """Sent as base64 in every question, as clients do."""
    model = models.tiny_idefics3(tmp_path)
    answers: dict[str, list[Answer]] = {}
    encoded: dict[str, int] = {}
    for arm, flags in ARMS.items():
        log = tmp_path / f"{arm}.log"
        command = vllm_serve(model, "--served-model-name", "tiny", *FLAGS, *flags)
        with Server(command, log, env=ENVIRONMENT) as server:
            server.wait_until_ready()
            client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none")
            answers[arm] = [ask(client, question) for question in QUESTIONS]
            counts = server.prefix_cache_counts()
        # The log tells of each step how many images it encoded.
        encoded[arm] = sum(map(int, re.findall(r"encoder inputs: (\d+)", log.read_text())))
    for off, radix in zip(answers["off"], answers["radix"], strict=True):
        assert radix[0] == off[0]
        assert radix[1] == pytest.approx(off[1], abs=LOGPROB_TOLERANCE)
    assert counts.hits > 0
    assert encoded["radix"] == NEW_IMAGES < encoded["off"]
