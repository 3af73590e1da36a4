# SPDX-License-Identifier: Apache-2.0
"""Prompts of text and images."""

from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from tests.bench.replay.words import save_tokenizer, words
from vllm_radix.bench.replay.prompts import Prompt, PromptReader
from vllm_radix.bench.replay.sessions import Span, Tokens
from vllm_radix.bench.replay.traces import TraceError

PROMPT: TypeAdapter[Prompt] = TypeAdapter(Prompt)


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> PromptReader:
    folder = tmp_path_factory.mktemp("tokenizer")
    return PromptReader(save_tokenizer(folder, marks_beginning=True), 3)


def image(url: str, **more: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}, **more}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def read(reader: PromptReader, *parts: dict[str, Any]) -> tuple[Tokens, tuple[Span, ...]]:
    return reader.prompt(PROMPT.validate_python(list(parts)), "here")


def content(reader: PromptReader, part: dict[str, Any]) -> list[int]:
    """The tokens of an image."""
    tokens, (span,) = read(reader, text("a"), part)
    return tokens[span.start : span.stop].tolist()


@pytest.mark.parametrize(
    ("parts", "expected", "spans"),
    [
        ([text("a b")], "<s> a b", ()),
        ([text("a"), text(" b")], "<s> a b", ()),
        ([image("x")], "<s> ? ? ?", ((1, 4),)),
        ([image("x"), text("a")], "<s> ? ? ? a", ((1, 4),)),
        ([text("a"), image("x", tokens=1), text("b")], "<s> a ? b", ((2, 3),)),
        ([text("a"), image("x"), image("x", tokens=2)], "<s> a ? ? ? ? ?", ((2, 5), (5, 7))),
    ],
)
def test_parts_follow_each_other(
    reader: PromptReader, parts: list[dict[str, Any]], expected: str, spans: object
) -> None:
    tokens, images = read(reader, *parts)
    assert words(tokens) == expected
    assert images == spans


def test_a_string_is_a_text(reader: PromptReader) -> None:
    tokens, images = reader.prompt(PROMPT.validate_python("a b"), "here")
    assert (words(tokens), images) == ("<s> a b", ())


def test_an_image_is_known_by_its_url_or_its_uuid(reader: PromptReader) -> None:
    x = content(reader, image("x"))
    assert x == content(reader, image("x", image_url={"url": "x", "detail": "auto"}, tokens=3))
    named = content(reader, image("x", uuid="u"))
    assert named == content(reader, image("y", uuid="u"))
    assert named == content(reader, {"type": "image_url", "uuid": "u"})
    # The same image in another size is another one to the model.
    others = [image("y"), image("xx"), image("x", uuid="x"), image("x", tokens=4)]
    firsts = [x[0], named[0], *(content(reader, other)[0] for other in others)]
    assert len(set(firsts)) == 6


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (None, "a prompt is a string, or a list of parts as .*; this one is null"),
        ({"type": "text", "text": "a"}, "a prompt is a string, .*; this one is an object"),
        ([{"text": "a"}], "a prompt is a string, .*; prompt.0. has another type, or none"),
        ([text("a"), {"type": "video_url"}], "a prompt is .*; prompt.1. has another type, or none"),
        ([{"type": ["text"]}], "a prompt is a string, .*; prompt.0. has another type, or none"),
        ([1, 2], "a prompt is a string, .*; prompt.0. is a number"),
        (["a"], "a prompt is a string, .*; prompt.0. is a string"),
        ([{"role": "user", "content": "a"}], "prompt.0. is a chat message, so render the messages"),
        ([{"type": "image_url"}], 'An image needs an "image_url": {"url": "..."}, or a "uuid"'),
        ([{"type": "image_url", "uuid": "u", "tokens": -3}], "greater than or equal to 1"),
        ([image("")], "String should have at least 1 character"),
        ([image("x", uuid="")], "String should have at least 1 character"),
        ([image("x", tokens=0)], "greater than or equal to 1"),
        ([image("x", tokens=2.5)], "valid integer"),
        ([image("x", token=20)], 'Unknown key "token": there are type, image_url, uuid, tokens'),
        ([image("x", image_url={"ulr": "x"})], 'Unknown key "ulr": there are url, detail'),
    ],
)
def test_what_is_no_prompt_is_refused(parts: object, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        PROMPT.validate_python(parts)


def test_a_size_is_needed(tmp_path_factory: pytest.TempPathFactory) -> None:
    reader = PromptReader(save_tokenizer(tmp_path_factory.mktemp("tokenizer")), None)
    assert read(reader, image("x", tokens=2))[1] == (Span(0, 2),)
    with pytest.raises(TraceError, match=r'^here: .* "tokens", or --image-tokens for all'):
        read(reader, image("x"))
    with pytest.raises(TraceError, match=r"^here: the prompt has no tokens"):
        read(reader)
