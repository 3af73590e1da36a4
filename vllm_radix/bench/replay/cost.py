# SPDX-License-Identifier: Apache-2.0
"""How long the model takes for a step, in virtual time."""

from dataclasses import dataclass


@dataclass(frozen=True)
class CostModel:
    """A step's duration as a linear function of the work in it. All values are in seconds.

    The default stands for a model of about eight billion parameters on one data-centre GPU.
    """

    per_step: float = 6e-3
    per_prefill_token: float = 40e-6
    per_decoding_sequence: float = 20e-6
    per_attended_token: float = 0.4e-9
    """For each pair of a prefill token and a token of its context."""

    def step_time(self, num_prefill_tokens: int, num_decoding: int, num_attended: int) -> float:
        """Seconds for one step.

        Args:
            num_prefill_tokens: tokens computed for prompts.
            num_decoding: sequences that decode one token each.
            num_attended: for each chunk of a prompt, its tokens times the length of the prompt up
                to its end; summed.
        """
        return (
            self.per_step
            + self.per_prefill_token * num_prefill_tokens
            + self.per_decoding_sequence * num_decoding
            + self.per_attended_token * num_attended
        )
