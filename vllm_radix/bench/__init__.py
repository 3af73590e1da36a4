# SPDX-License-Identifier: Apache-2.0
"""Measuring a vLLM server from outside: start it, drive it, read its metrics, stop it."""
