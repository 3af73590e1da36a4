# SPDX-License-Identifier: Apache-2.0
"""Agents that look at screenshots, and at the same ones again and again."""

import base64
import io
from random import Random
from typing import ClassVar

from PIL import Image, ImageDraw

from vllm_radix.bench.ab.workloads.base import (
    Message,
    Session,
    Workload,
    dialogue,
    system,
    think_times,
    user,
)
from vllm_radix.bench.ab.workloads.prose import PEOPLE, PLACES, THINGS, rules, sentence
from vllm_radix.bench.quantities import Count, Seconds

_LINE = 22
"""Pixels between two lines of a screen."""


class Screens(Workload):
    """Each session is one agent: it opens a screen, asks about it, and goes on to the next.

    The conversation keeps every screen that was opened. Agents of one task open the same screens in
    the same order, so that one finds cached what another has looked at.
    """

    name: ClassVar[str] = "screens"
    about: ClassVar[str] = "agents that inspect the same few screenshots; the model must see images"
    images: ClassVar[bool] = True
    lengthens: ClassVar[tuple[str, ...]] = (
        "screens",
        "questions",
        "width",
        "height",
        "system_words",
        "answer_tokens",
    )
    num_sessions: Count = 24
    tasks: Count = 4
    """Sequences of screens that sessions share."""
    screens: Count = 2
    """Screens that a session opens, one after the other."""
    questions: Count = 3
    """Asked about each screen, one a turn."""
    width: Count = 512
    """Of a screen, in pixels."""
    height: Count = 512
    system_words: Count = 200
    answer_tokens: Count = 48
    think_time: Seconds = 0.5
    """Mean time between an answer and the next question, exponentially distributed, in seconds."""
    start_within: Seconds = 2.0
    """Sessions begin uniformly within so many seconds."""

    def sessions(self, seed: int) -> list[Session]:
        rng = Random(seed)
        instructions = system(
            "You look at the screens of an office and answer in one or two sentences.\n"
            f"{rules(rng, self.system_words)}"
        )
        tasks = [
            [_screen(rng, self.width, self.height) for _ in range(self.screens)]
            for _ in range(self.tasks)
        ]
        order = [number % self.tasks for number in range(self.num_sessions)]
        rng.shuffle(order)
        return [
            self._session(f"viewer-{number}", instructions, tasks[which], rng)
            for number, which in enumerate(order)
        ]

    def _session(
        self, name: str, instructions: Message, screens: list[str], rng: Random
    ) -> Session:
        messages = []
        for screen in screens:
            first, *others = [_question(rng) for _ in range(self.questions)]
            messages.append(_opened(screen, first))
            messages += [user(question) for question in others]
        waits = think_times(rng, self.think_time, len(messages))
        start = rng.random() * self.start_within
        turns = dialogue(instructions, messages, waits, self.answer_tokens)
        return Session(name, start, len(messages), turns)


def _screen(rng: Random, width: int, height: int) -> str:
    """A made-up screenshot: windows with a few lines of text each, as the URL of a PNG."""
    picture = Image.new("RGB", (width, height), _colour(rng))
    draw = ImageDraw.Draw(picture)
    for _ in range(3):
        left, top = rng.randrange(width), rng.randrange(height)
        right, bottom = rng.randint(left, width), rng.randint(top, height)
        draw.rectangle((left, top, right, bottom), fill=_colour(rng), outline=_colour(rng))
    for top in range(0, height, _LINE):
        draw.text((4, top), sentence(rng), fill=_colour(rng))
    file = io.BytesIO()
    picture.save(file, "PNG")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


def _colour(rng: Random) -> tuple[int, int, int]:
    return rng.randrange(256), rng.randrange(256), rng.randrange(256)


def _opened(screen: str, question: str) -> Message:
    """The message that shows a screen. It comes before the question, so that others share it."""
    parts = [
        {"type": "image_url", "image_url": {"url": screen}},
        {"type": "text", "text": question},
    ]
    return {"role": "user", "content": parts}


def _question(rng: Random) -> str:
    who, what, where = rng.choice(PEOPLE), rng.choice(THINGS), rng.choice(PLACES)
    return rng.choice(
        (
            f"Does the screen say what {who} did with {what}?",
            f"Which line speaks of {where}, and what happened there?",
            f"Who has {what} now, as far as you can see?",
        )
    )
