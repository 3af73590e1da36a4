# SPDX-License-Identifier: Apache-2.0
"""vLLM's block manager, on the tree.

A block is in exactly one of three states, and ``free + private + cached`` is the pool:

* *free*: on the free list of :class:`~vllm_radix.cache.block_pool.RadixBlockPool`;
* *private*: in use by requests (or connectors) that allocated it, not found by any match;
* *cached*: owned by a node of the :class:`~vllm_radix.tree.RadixTree`; in use if the node is
  locked, evictable if not.

vLLM's scheduler, coordinator and connectors see vLLM's own interfaces: ``KVCacheBlock`` objects
are views that are made when somebody asks, because nothing on the way of a request needs them.
"""
