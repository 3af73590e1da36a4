# SPDX-License-Identifier: Apache-2.0
"""Made-up English, plain enough that a small model can go on with it.

Everything is drawn from the given generator, so the same seed gives the same text. Lengths are in
words; most tokenizers need 1.2 to 1.5 tokens a word.
"""

from collections.abc import Callable
from random import Random

PLACES = (
    "the harbour", "the old mill", "the north gate", "the library", "the market hall",
    "the railway yard", "the glass house", "the water tower", "the print shop", "the bakery",
    "the observatory", "the ferry landing", "the quarry", "the town archive", "the workshop",
    "the east bridge",
)  # fmt: skip
PEOPLE = (
    "Ines", "Tomas", "Farida", "Kenji", "Olga", "Marek", "Leila", "Hugo", "Amara", "Viktor",
    "Nadia", "Samuel", "Greta", "Pavel", "Rosa", "Idris", "Anneke", "Bruno", "Chiara", "Dmitri",
)  # fmt: skip
THINGS = (
    "a crate of lamps", "the spare pump", "two sacks of grain", "the blue ledger",
    "a box of seals", "the long ladder", "three coils of rope", "the weather chart",
    "a set of brass keys", "the signal lantern", "four tins of paint", "the folded map",
    "a bundle of letters", "the broken scale", "six wooden frames", "the visitors' book",
)  # fmt: skip
ACTIONS = (
    "carried", "counted", "repaired", "labelled", "lent out", "brought back", "measured",
    "cleaned", "wrapped up", "weighed", "set aside", "handed over", "looked for", "replaced",
)  # fmt: skip
TIMES = (
    "before sunrise", "on Monday", "shortly after noon", "in the evening", "twice last week",
    "during the storm", "on the first of the month", "as soon as the doors opened",
    "while it was still quiet", "at a quarter past nine", "late on Thursday",
)  # fmt: skip
REASONS = (
    "because the list asked for it", "since nobody else was free", "so that the count was right",
    "although the key was missing", "because the rain had come in", "to make room for the guests",
    "as the rules require", "before anyone could object", "to save a second journey",
)  # fmt: skip
VERBS = (
    "check", "record", "report", "count", "compare", "confirm", "repeat", "list", "date", "sign",
)  # fmt: skip
SUBJECTS = (
    "every delivery", "each open order", "the stock of the day", "all prices", "any damage",
    "the names of the guests", "late returns", "the temperature of the store", "each payment",
    "the length of the queue", "unusual requests", "the state of the tools",
)  # fmt: skip
LIMITS = (
    "before anything else", "no later than the next morning", "in one short sentence",
    "even if the value is zero", "unless the owner says otherwise", "in the order of arrival",
    "with the time and the place", "without guessing", "only once", "and never from memory",
)  # fmt: skip


def sentence(rng: Random) -> str:
    """Something that happened, in 10 to 20 words."""
    who, what, where = rng.choice(PEOPLE), rng.choice(THINGS), rng.choice(PLACES)
    did, when, why = rng.choice(ACTIONS), rng.choice(TIMES), rng.choice(REASONS)
    number = rng.randint(2, 990)
    return rng.choice(
        (
            f"{when.capitalize()} {who} {did} {what} at {where} {why}.",
            f"{who} {did} {what} near {where} {when}, {why}.",
            f"At {where}, {who} {did} {what} {when} and wrote down the number {number}.",
            f"{number} visitors came to {where} {when}, and {who} {did} {what}.",
        )
    )


def rule(rng: Random) -> str:
    """Something that must be done, in 7 to 12 words."""
    verb, subject, limit = rng.choice(VERBS), rng.choice(SUBJECTS), rng.choice(LIMITS)
    return f"{verb.capitalize()} {subject} {limit}."


def prose(rng: Random, words: int) -> str:
    """Sentences, of ``words`` words or a few more."""
    return " ".join(_enough(rng, words, sentence))


def rules(rng: Random, words: int) -> str:
    """A numbered list of rules, of ``words`` words or a few more."""
    lines = _enough(rng, words, rule)
    return "\n".join(f"{number}. {line}" for number, line in enumerate(lines, 1))


def _enough(rng: Random, words: int, make: Callable[[Random], str]) -> list[str]:
    parts: list[str] = []
    count = 0
    while count < words:
        part = make(rng)
        parts.append(part)
        count += len(part.split())
    return parts
