# SPDX-License-Identifier: Apache-2.0
"""Prompts as text, or as text and images in the content parts of the chat API."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self, TypeAlias

import numpy as np
from pydantic import BaseModel, BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from vllm_radix.bench.folders import check_named
from vllm_radix.bench.quantities import SomeTokens
from vllm_radix.bench.replay.sessions import NUM_TOKEN_IDS, Span, Tokens
from vllm_radix.bench.replay.traces import TraceError

_WHAT_IT_MAY_BE = (
    'a prompt is a string, or a list of parts as {"type": "text", "text": "..."} and '
    '{"type": "image_url", "image_url": {"url": "..."}}'
)

NonEmpty = Annotated[str, Field(min_length=1)]


class _ImageModel(BaseModel):
    """What an image part holds; a key that means nothing here is one that was misspelt."""

    @model_validator(mode="before")
    @classmethod
    def _has_known_keys(cls, value: Any) -> Any:
        for key in value if isinstance(value, dict) else ():
            if key not in cls.model_fields:
                raise PydanticCustomError(
                    "key",
                    'Unknown key "{key}": there are {known}',
                    {"key": key, "known": ", ".join(cls.model_fields)},
                )
        return value


class TextPart(BaseModel):
    """Text between images."""

    type: Literal["text"]
    text: str


class ImageUrl(_ImageModel):
    """Where the image is, or the image itself as base64. Nothing is fetched or decoded."""

    url: NonEmpty
    detail: Any = None
    """Of the chat API. How many tokens it makes is for ``tokens`` to say."""


class ImagePart(_ImageModel):
    """An image. Its URL says which one it is, or its ``uuid`` if it has one, as in vLLM."""

    type: Literal["image_url"]
    image_url: ImageUrl | None = None
    uuid: NonEmpty | None = None
    tokens: SomeTokens | None = None
    """Positions that it takes in the prompt."""

    @property
    def identity(self) -> tuple[bool, str]:
        """The same for the same image, and for no other."""
        if self.uuid is not None:
            return (False, self.uuid)
        assert self.image_url is not None
        return (True, self.image_url.url)

    @model_validator(mode="after")
    def _is_known(self) -> Self:
        if self.image_url is None and self.uuid is None:
            raise PydanticCustomError(
                "image", 'An image needs an "image_url": {"url": "..."}, or a "uuid"'
            )
        return self


_PART_TYPES = ("text", "image_url")
_KINDS = {
    type(None): "null",
    bool: "true or false",
    int: "a number",
    float: "a number",
    str: "a string",
    list: "a list",
    dict: "an object",
}


def _as_parts(value: Any) -> Any:
    if isinstance(value, str):
        return [TextPart(type="text", text=value)]
    if not isinstance(value, list):
        raise _not_a_prompt(f"this one is {_kind(value)}")
    for number, part in enumerate(value):
        if not isinstance(part, dict):
            raise _not_a_prompt(f"prompt[{number}] is {_kind(part)}")
        if part.get("type") in _PART_TYPES:
            continue
        if "role" in part:
            raise _not_a_prompt(
                f"prompt[{number}] is a chat message, so render the messages to one text with the "
                "model's chat template"
            )
        raise _not_a_prompt(f"prompt[{number}] has another type, or none")
    return value


def _not_a_prompt(what: str) -> PydanticCustomError:
    return PydanticCustomError(
        "prompt", "{may_be}; {what}", {"may_be": _WHAT_IT_MAY_BE, "what": what}
    )


def _kind(value: Any) -> str:
    return _KINDS.get(type(value), "something else")


Prompt: TypeAlias = Annotated[
    list[Annotated[TextPart | ImagePart, Field(discriminator="type")]], BeforeValidator(_as_parts)
]
"""A string is a prompt of one part."""


class PromptReader:
    """Turns the prompts of one trace into tokens."""

    def __init__(self, tokenizer: str, image_tokens: int | None) -> None:
        """Load the tokenizer.

        Args:
            tokenizer: a name or a folder for ``AutoTokenizer``.
            image_tokens: positions of an image whose part does not tell them.

        Raises:
            TraceError: there is no such tokenizer.
        """
        try:
            check_named("tokenizer", tokenizer)
        except ValueError as error:
            raise TraceError(f"--tokenizer: {error}") from None
        from transformers import AutoTokenizer

        try:
            self._tokenizer: Any = AutoTokenizer.from_pretrained(tokenizer)
        except (OSError, ValueError) as error:
            reason = str(error).splitlines()[0]
            raise TraceError(f"There is no tokenizer {tokenizer!r}: {reason}") from None
        self._image_tokens = image_tokens
        self._ids: dict[tuple[bool, str, int], int] = {}

    def text(self, text: str, *, begins: bool = True) -> Tokens:
        """The tokens of a text, after what the tokenizer sets before a prompt if it ``begins``."""
        # JSON may hold half of a pair of surrogates, as where a log cut a text short.
        text = text.encode(errors="replace").decode()
        return np.asarray(self._tokenizer(text, add_special_tokens=begins).input_ids, np.int32)

    def prompt(self, parts: Prompt, place: str) -> tuple[Tokens, tuple[Span, ...]]:
        """The tokens of a prompt, shape ``[num_tokens]``, and where its images are.

        Raises:
            TraceError: it has no tokens, or nothing tells the size of an image.
        """
        texts, images = _split(parts)
        tokens, spans = [self.text(texts[0])], []
        position = len(tokens[0])
        for image, text in zip(images, texts[1:], strict=True):
            content = self._image(image, place)
            spans.append(Span(position, position + len(content)))
            tokens += [content, self.text(text, begins=False)]
            position += len(content) + len(tokens[-1])
        if not position:
            raise TraceError(f"{place}: the prompt has no tokens.")
        return np.concatenate(tokens), tuple(spans)

    def _image(self, part: ImagePart, place: str) -> Tokens:
        """The same tokens for the same image, and for no other image and no text."""
        size = part.tokens or self._image_tokens
        if size is None:
            raise TraceError(
                f'{place}: nothing tells how many tokens an image takes: give its part "tokens", '
                "or --image-tokens for all that have none."
            )
        # What the model sees of an image depends on its size.
        key = (*part.identity, size)
        number = self._ids.setdefault(key, len(self._ids))
        return np.full(size, NUM_TOKEN_IDS + number, np.int32)


def _split(parts: Sequence[TextPart | ImagePart]) -> tuple[list[str], list[ImagePart]]:
    """The images, and the texts before, between and after them: one more than images."""
    texts, images = [""], []
    for part in parts:
        if isinstance(part, TextPart):
            texts[-1] += part.text
        else:
            images.append(part)
            texts.append("")
    return texts, images
