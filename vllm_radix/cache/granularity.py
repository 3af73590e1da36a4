# SPDX-License-Identifier: Apache-2.0
"""Where a match may end inside a block, and where only whole blocks are safe."""

from vllm.config import VllmConfig
from vllm.platforms import current_platform

# These propose from the tokens alone. Other drafters keep KV of their own, which may depend on
# tokens that come after the match.
_DRAFTERS_WITHOUT_KV = frozenset({"ngram", "ngram_gpu", "suffix"})


def why_whole_blocks(vllm_config: VllmConfig) -> str | None:
    """Why a match has to be a whole number of blocks here, or None if it may end at any token.

    A match that ends inside a block has the worker copy that block at the start of the step, and
    the request goes on in the copy.
    """
    if vllm_config.kv_transfer_config is not None:
        return "a KV connector transfers whole blocks"
    aux_output = getattr(vllm_config, "aux_output_config", None)
    if aux_output is not None and aux_output.enabled:
        return "auxiliary outputs are kept for whole blocks"
    speculative = vllm_config.speculative_config
    if speculative is not None and speculative.method not in _DRAFTERS_WITHOUT_KV:
        return f"the drafter ({speculative.method}) has KV that depends on the tokens to come"
    parallel = vllm_config.parallel_config
    if parallel.decode_context_parallel_size > 1 or parallel.prefill_context_parallel_size > 1:
        return "context parallelism spreads a block over several workers"
    if str(vllm_config.cache_config.cache_dtype).endswith("per_token_head"):
        return "the quantised KV cache keeps its scales outside the blocks that are copied"
    if not (current_platform.is_cuda_alike() or current_platform.is_cpu()):
        return f"it is not known whether a {current_platform.device_name} worker can copy blocks"
    return None
