# SPDX-License-Identifier: Apache-2.0
"""Questions behind worked examples."""

from random import Random
from typing import ClassVar

from vllm_radix.bench.ab.workloads.base import (
    Call,
    Session,
    Turn,
    Turns,
    Workload,
)
from vllm_radix.bench.ab.workloads.prose import PEOPLE, PLACES
from vllm_radix.bench.quantities import Count, Seconds

_GOODS = ("apples", "letters", "lamps", "tickets", "bricks", "maps", "keys", "ropes", "plates")


class FewShot(Workload):
    """Each session asks questions of one task; each is answered, then its answer is checked."""

    name: ClassVar[str] = "few-shot"
    about: ClassVar[str] = "questions behind worked examples, each answered and then checked"
    lengthens: ClassVar[tuple[str, ...]] = ("examples", "answer_tokens", "check_tokens")
    tasks: Count = 10
    """Sets of examples."""
    examples: Count = 20
    """Worked examples of a task."""
    sessions_per_task: Count = 8
    questions: Count = 4
    """Asked by a session, one after the other."""
    answer_tokens: Count = 48
    check_tokens: Count = 16
    start_within: Seconds = 2.0
    """Sessions begin uniformly within so many seconds."""

    def sessions(self, seed: int) -> list[Session]:
        rng = Random(seed)
        made = []
        for task in range(self.tasks):
            examples = "\n\n".join(_example(rng) for _ in range(self.examples))
            head = f"Task {task + 1}. Work out each answer step by step.\n\n{examples}\n\n"
            made += [
                self._session(f"task-{task}-{number}", head, rng)
                for number in range(self.sessions_per_task)
            ]
        rng.shuffle(made)
        return made

    def _session(self, name: str, head: str, rng: Random) -> Session:
        questions = [_question(rng)[0] for _ in range(self.questions)]
        start = rng.random() * self.start_within

        def turns() -> Turns:
            for question in questions:
                prompt = f"{head}{question}"
                ((answer,),) = yield Turn((Call(prompt, self.answer_tokens),))
                check = f"{prompt}{answer.rstrip()}\nCheck: the steps above are"
                yield Turn((Call(check, self.check_tokens),))

        return Session(name, start, 2 * self.questions, turns)


def _example(rng: Random) -> str:
    question, solution = _question(rng)
    return f"{question} {solution}"


def _question(rng: Random) -> tuple[str, str]:
    """A question up to its answer, and its worked answer."""
    who, goods, place = rng.choice(PEOPLE), rng.choice(_GOODS), rng.choice(PLACES)
    boxes, each, gone = rng.randint(3, 12), rng.randint(4, 20), rng.randint(1, 11)
    question = (
        f"Question: {who} brings {boxes} boxes with {each} {goods} each to {place} and gives away "
        f"{gone} of the {goods}. How many are left?\nAnswer:"
    )
    total = boxes * each
    solution = (
        f"{boxes} boxes with {each} {goods} are {boxes} * {each} = {total} {goods}. Without "
        f"{gone}, {total} - {gone} = {total - gone} are left. The answer is {total - gone}."
    )
    return question, solution
