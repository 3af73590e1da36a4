# SPDX-License-Identifier: Apache-2.0
"""Records read from many pages by one set of rules."""

import json
from random import Random
from typing import ClassVar

from vllm_radix.bench.ab.workloads.base import (
    Call,
    Message,
    Session,
    Turn,
    Turns,
    Workload,
    draw,
    system,
    user,
)
from vllm_radix.bench.ab.workloads.prose import PEOPLE, PLACES, prose, rules
from vllm_radix.bench.quantities import Count, Range, Seconds

_SCHEMA = {
    "who": "the person's first name",
    "what": "the thing that was moved, counted or repaired",
    "where": "the place, with its article",
    "when": "the day or the time of day, in the words of the page",
    "number": "a whole number, or null if the page gives none",
}


class Extraction(Workload):
    """Each session is one document, read page by page; a page is told the record before it."""

    name: ClassVar[str] = "extraction"
    about: ClassVar[str] = "the same schema and rules over the pages of many documents"
    lengthens: ClassVar[tuple[str, ...]] = ("rules_words", "page_words", "answer_tokens")
    documents: Count = 40
    pages: Count = 8
    rules_words: Count = 1200
    page_words: Range = (150, 350)
    answer_tokens: Count = 96
    start_within: Seconds = 2.0
    """Documents arrive uniformly within so many seconds."""

    def sessions(self, seed: int) -> list[Session]:
        rng = Random(seed)
        instructions = system(
            "You read records from the pages of a town's old papers. Answer with one JSON object a "
            f"line and nothing else. The fields of a record:\n{json.dumps(_SCHEMA, indent=1)}\n"
            f"The rules:\n{rules(rng, self.rules_words)}"
        )
        return [
            self._session(f"document-{number}", instructions, rng)
            for number in range(self.documents)
        ]

    def _session(self, name: str, instructions: Message, rng: Random) -> Session:
        title = f"Papers of {rng.choice(PEOPLE)}, kept at {rng.choice(PLACES)}"
        pages = [prose(rng, draw(rng, self.page_words)) for _ in range(self.pages)]
        start = rng.random() * self.start_within

        def turns() -> Turns:
            record = "none"
            for number, page in enumerate(pages, 1):
                text = (
                    f"{title}, page {number}.\n\n{page}\n\nThe last record before this page: "
                    f"{record}\nThe records of this page:"
                )
                ((record,),) = yield Turn((Call((instructions, user(text)), self.answer_tokens),))

        return Session(name, start, self.pages, turns)
