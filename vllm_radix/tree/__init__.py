# SPDX-License-Identifier: Apache-2.0
"""A radix tree over tokens whose nodes own KV blocks. No vLLM in here.

Contract
========
============================================  ===================================================
the tree owns                                 the tree does not own
============================================  ===================================================
which block holds which tokens of a prefix    the KV bytes, and block ids that are free or private
who is using a prefix (lock counts)           requests: a request is a node it locked, no more
the order in which prefixes are evicted       the decision to evict, and how many blocks
exact comparison of tokens and labels         tokenizers, images, adapters: it sees int32 and a
                                              namespace
============================================  ===================================================

The idea is SGLang's RadixAttention (Zheng et al., 2024, arXiv 2312.07104); whole blocks on the
edges of the tree, and copies of the block in which two prompts part, are ours.

* **Edges.** A node's edge is a span of int32 tokens, ``[node.start, node.end)`` counted from the
  root. Children are keyed by their first token. Prompts that diverge split an edge at exactly the
  token where they do, whatever the block size.
* **Blocks.** Block *k* of a prefix holds tokens ``[k*B, (k+1)*B)``. A node owns the blocks whose
  last filled token lies in its span. A node that ends inside a block owns no block for that last
  piece: each child's first block holds a full copy of it. Only a leaf may own a partly filled
  block.
* **Identity.** A split makes a new *upper* node and the lower part stays the object that it was;
  a merge keeps the child. So a node that somebody locked stays good until it is released.
* **Locks.** :meth:`RadixTree.acquire` locks the path to the end of a match, once per request, at
  a cost of the path's length. A locked node is never evicted or trimmed. A child's lock count
  never exceeds its parent's.
* **Order.** Only unlocked leaves are evicted, from their tail, in the order of the policy.
* **Bookmarks.** A node that nobody locked may be merged, replaced or gone at any time. Who wants to
  know what became of a prefix places a bookmark at its end: it stays at that token through splits,
  merges and longer copies of its last block. When the token leaves the tree, the bookmark moves up
  to the end of what is left, or is gone, as it was asked to. A bookmark protects nothing.

Reading order: :mod:`.key` (what is matched), :mod:`.node`, :mod:`.tree`, :mod:`.eviction`,
:mod:`.bookmark`.
"""

from vllm_radix.tree.bookmark import Bookmark
from vllm_radix.tree.eviction import POLICIES, EvictionPolicy, make_policy
from vllm_radix.tree.key import Key, LabelTable, Namespace, pack_tokens
from vllm_radix.tree.node import Node
from vllm_radix.tree.tree import Extension, Match, RadixTree

__all__ = [
    "POLICIES",
    "Bookmark",
    "EvictionPolicy",
    "Extension",
    "Key",
    "LabelTable",
    "Match",
    "Namespace",
    "Node",
    "RadixTree",
    "make_policy",
    "pack_tokens",
]
