# SPDX-License-Identifier: Apache-2.0
"""The same agent dialogues through three servers: no prefix cache, stock APC, radix tree."""
