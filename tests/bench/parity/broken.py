# SPDX-License-Identifier: Apache-2.0
"""A scheduler whose cache gives wrong blocks, for parity to catch."""

from typing import Any

from vllm_radix.cache.manager import RadixGroupManager
from vllm_radix.scheduling.scheduler import RadixScheduler


class BrokenScheduler(RadixScheduler):
    """Reads the first block of a match in the place of its last one too."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        (group,) = self.kv_cache_manager.coordinator.single_type_managers
        assert isinstance(group, RadixGroupManager)
        add = group.add_local_computed_blocks

        def add_wrong(request_id: str, *args: Any, **kwargs: Any) -> None:
            add(request_id, *args, **kwargs)
            blocks = group.req_to_blocks[request_id].ids
            if len(blocks) > 1:
                blocks[-1] = blocks[0]

        group.add_local_computed_blocks = add_wrong
