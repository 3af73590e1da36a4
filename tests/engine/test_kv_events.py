# SPDX-License-Identifier: Apache-2.0
"""KV cache events: whoever follows them knows what is cached."""

import random
import time
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import zmq
from vllm.config import KVEventsConfig
from vllm.distributed.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, KVEventBatch

from .conftest import EngineFactory
from .engines import Ask, Engine, Kind, assert_same, one_by_one
from .prompts import tokens, whole_blocks

pytestmark = pytest.mark.engine

BLOCK = 16
POOL: dict[str, Any] = {"block_size": BLOCK, "num_gpu_blocks_override": 24, "max_model_len": 320}

# A block as the events describe it: the salt of its prefix and all tokens up to its end.
Prefix = tuple[str | None, tuple[int, ...]]


class Mirror:
    """A cache rebuilt from published events alone, as a router would."""

    def __init__(self, endpoint: str) -> None:
        self.prefixes: dict[Any, Prefix] = {}
        self.cleared = 0
        self._next = 0
        self._decoder = msgspec.msgpack.Decoder(KVEventBatch)
        self._socket = zmq.Context.instance().socket(zmq.SUB)
        self._socket.connect(endpoint)
        self._socket.setsockopt(zmq.SUBSCRIBE, b"")
        time.sleep(0.1)  # the publisher notices a new subscriber within milliseconds

    def close(self) -> None:
        self._socket.close(linger=0)

    def follow(self, engine: Engine) -> None:
        """Apply all that `engine` has published."""
        engine.scheduler.kv_event_publisher._event_queue.join()
        while self._socket.poll(50):
            _, number, payload = self._socket.recv_multipart()
            assert int.from_bytes(number, "big") == self._next, "a batch of events was missed"
            self._next += 1
            for event in self._decoder.decode(payload).events:
                self._apply(event)

    def _apply(self, event: BlockStored | BlockRemoved | AllBlocksCleared) -> None:
        if isinstance(event, AllBlocksCleared):
            self.prefixes.clear()
            self.cleared += 1
        elif isinstance(event, BlockRemoved):
            for block_hash in event.block_hashes:
                gone = self.prefixes.pop(block_hash)
                below = [p for p in self.prefixes.values() if _begins(p, gone)]
                assert not below, "a prefix was removed before what continues it"
        else:
            assert len(event.token_ids) == len(event.block_hashes) * event.block_size
            extra = event.extra_keys[0] if event.extra_keys else None
            prefix: Prefix = (extra[0] if extra else None, ())
            if event.parent_block_hash is not None:
                prefix = self.prefixes[event.parent_block_hash]  # parents come before children
            for i, block_hash in enumerate(event.block_hashes):
                span = event.token_ids[i * event.block_size : (i + 1) * event.block_size]
                prefix = (prefix[0], prefix[1] + tuple(span))
                assert self.prefixes.setdefault(block_hash, prefix) == prefix

    def predict(self, ask: Ask) -> int:
        """The length of the cached prefix of a prompt, of which the last token is computed."""
        cached = set(self.prefixes.values())
        n = 0
        while (ask.salt, ask.prompt[: n + BLOCK]) in cached and n + BLOCK < len(ask.prompt):
            n += BLOCK
        return n


def _begins(prefix: Prefix, other: Prefix) -> bool:
    return prefix[0] == other[0] and prefix[1][: len(other[1])] == other[1]


def _in_the_tree(engine: Engine) -> set[Prefix]:
    """The full blocks that the tree holds."""
    found: set[Prefix] = set()
    for node in engine.scheduler.kv_cache_manager.block_pool.tree.all_nodes():
        path = [node]
        while path[-1].parent is not None:
            path.append(path[-1].parent)
        edge = b"".join(bytes(part.edge) for part in reversed(path))
        span = tuple(memoryview(edge).cast("i"))
        for end in range(node.start // BLOCK + 1, node.end // BLOCK + 1):
            found.add((path[-1].namespace.salt, span[: end * BLOCK]))
    return found


@pytest.fixture
def followed(
    engine: EngineFactory, kind: Kind, request: pytest.FixtureRequest
) -> Iterator[tuple[Engine, Mirror]]:
    endpoint = f"inproc://{request.node.name}"
    config = KVEventsConfig(enable_kv_cache_events=True, publisher="zmq", endpoint=endpoint)
    eng = engine(kind, **POOL, kv_events_config=config)
    mirror = Mirror(endpoint)
    yield eng, mirror
    mirror.close()


def _random_asks(seed: int, count: int) -> list[Ask]:
    rng = random.Random(seed)
    parts = [tokens(f"{seed}/{i}", rng.choice([16, 25, 32, 40])) for i in range(4)]
    return [
        Ask(
            sum((rng.choice(parts) for _ in range(rng.randrange(1, 5))), tokens(i, i % 3)),
            max_tokens=rng.randrange(1, 30),
            salt=rng.choice([None, None, "tenant"]),
        )
        for i in range(count)
    ]


@pytest.mark.parametrize("kind", ["stock", "blocks", "radix"])
def test_events_predict_every_hit(followed: tuple[Engine, Mirror]) -> None:
    """Sixty requests one by one under eviction: each hit is the one that the events foretell."""
    eng, mirror = followed
    for ask in _random_asks(1, 60):
        mirror.follow(eng)
        expected = mirror.predict(ask)
        [answer] = eng.run([ask])
        assert answer.cached is not None
        assert whole_blocks(answer.cached, BLOCK) == expected
    assert eng.totals.hits > 0
    assert mirror.cleared == 0


@pytest.mark.parametrize("kind", ["blocks", "radix"])
@pytest.mark.parametrize("seed", range(3))
def test_events_rebuild_the_tree(
    engine: EngineFactory, followed: tuple[Engine, Mirror], seed: int
) -> None:
    """Requests together, preempted and aborted: at every rest the events give the tree."""
    eng, mirror = followed
    rng = random.Random(seed)
    asks = _random_asks(10 + seed, 48)
    expected = engine("off", block_size=BLOCK).run(asks)
    for start in range(0, 48, 12):
        batch = asks[start : start + 12]
        ids = [eng.add(ask) for ask in batch]
        aborted = rng.randrange(12)
        at = rng.randrange(30)

        def act(step: int, victim: str = ids[aborted], at: int = at) -> None:
            if step == at:
                eng.abort(victim)

        eng.drain(act)
        mirror.follow(eng)
        assert set(mirror.prefixes.values()) == _in_the_tree(eng)
        finished = [i for i in range(12) if ids[i] in eng.answers]
        assert len(finished) >= 11
        assert_same(
            [expected[start + i] for i in finished], [eng.answers[ids[i]] for i in finished]
        )
    assert eng.totals.preemptions > 0


@pytest.mark.parametrize("kind", ["stock", "blocks", "radix"])
def test_a_reset_clears(followed: tuple[Engine, Mirror]) -> None:
    eng, mirror = followed
    ask = Ask(tokens("cleared", 50))
    eng.run([ask])
    assert eng.llm.reset_prefix_cache()
    eng.run([Ask(tokens("next", 40), max_tokens=1)])
    mirror.follow(eng)
    assert mirror.cleared == 1
    assert mirror.predict(ask) == 0
    assert len(mirror.prefixes) == 2


@pytest.mark.parametrize("kind", ["blocks", "radix"])
def test_duplicates_are_one(followed: tuple[Engine, Mirror]) -> None:
    """Requests that compute the same answer side by side store each of its blocks once."""
    eng, mirror = followed
    ask = Ask(tokens("twice", 20), max_tokens=40)
    eng.run([ask] * 3)
    eng.run([ask] * 2, one_by_one([ask] * 2))
    mirror.follow(eng)
    assert len(mirror.prefixes) == (20 + 40 - 1) // BLOCK
    assert set(mirror.prefixes.values()) == _in_the_tree(eng)
