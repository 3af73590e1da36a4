# SPDX-License-Identifier: Apache-2.0
"""Items for the tasks of this folder, made up anew and alike by every run.

All three ask to copy words out of a text into a form that only the examples before it show, which
even a small model does well, and which goes wrong when the examples or the text are read from the
wrong KV blocks.
"""

from collections.abc import Callable
from random import Random

from datasets import Dataset

EXAMPLES = 20
ITEMS = 210
Item = dict[str, str]


def _words(text: str) -> list[str]:
    return text.split()


FIRST_NAMES = _words(
    "Anna Boris Clara David Emma Felix Greta Hugo Irene Jonas Katja Leon Maria Nils Olga Peter "
    "Rita Simon Tara Victor"
)
LAST_NAMES = _words("Smith Miller Weber Rossi Novak Larsen Murphy Silva")
CITIES = _words("Paris London Berlin Madrid Rome Vienna Oslo Dublin Lisbon Warsaw Athens Prague")
JOBS = _words("baker teacher nurse lawyer farmer painter driver doctor singer pilot")
COLOURS = _words("red blue green yellow white black pink brown")
GOODS = _words("lamp chair table book clock mirror carpet kettle basket candle")
THINGS = _words(
    "apple river stone cloud table green window garden paper silver music horse winter bread "
    "yellow flower kitchen orange summer lemon"
)


def records(**_: object) -> dict[str, Dataset]:
    """Who somebody is, as a record."""
    return _splits("records", _record)


def orders(**_: object) -> dict[str, Dataset]:
    """What somebody orders, as JSON."""
    return _splits("orders", _order)


def lists(**_: object) -> dict[str, Dataset]:
    """What is listed in a sentence, in the same order."""
    return _splits("lists", _list)


def _splits(name: str, make: Callable[[Random], Item]) -> dict[str, Dataset]:
    """Examples for the prompt in ``train``, items in ``test``; no two are alike."""
    rng = Random(name)
    found: dict[str, Item] = {}
    while len(found) < EXAMPLES + ITEMS:
        item = make(rng)
        found.setdefault(item["text"], item)
    items = list(found.values())
    return {
        "train": Dataset.from_list(items[:EXAMPLES]),
        "test": Dataset.from_list(items[EXAMPLES:]),
    }


def _record(rng: Random) -> Item:
    name = f"{rng.choice(FIRST_NAMES)} {rng.choice(LAST_NAMES)}"
    age, city, job = rng.randint(20, 79), rng.choice(CITIES), rng.choice(JOBS)
    text = rng.choice(
        (
            f"{name}, aged {age}, is a {job} from {city}.",
            f"In {city} we met {name}, a {job} of {age} years.",
            f"The {job} {name} is {age} years old and lives in {city}.",
            f"My neighbour {name} moved to {city} at {age} and became a {job}.",
        )
    )
    return {"text": text, "answer": f"name: {name}; age: {age}; city: {city}; job: {job}"}


def _order(rng: Random) -> Item:
    goods, colour = rng.choice(GOODS), rng.choice(COLOURS)
    count, price = rng.randint(2, 40), rng.randint(3, 95)
    text = rng.choice(
        (
            f"Please send {count} {colour} {goods}s at {price} euros each.",
            f"I would like to order {count} {goods}s in {colour}, for {price} euros apiece.",
            f"{count} {colour} {goods}s, please; you said {price} euros each.",
        )
    )
    answer = f'{{"item": "{goods}", "colour": "{colour}", "count": {count}, "price": {price}}}'
    return {"text": text, "answer": answer}


def _list(rng: Random) -> Item:
    things = rng.sample(THINGS, 4)
    text = f"We need {', '.join(things[:-1])} and {things[-1]}."
    return {"text": text, "answer": " | ".join(things)}
