# SPDX-License-Identifier: Apache-2.0
"""The version of this package: the one place that states it."""

__version__ = "0.1.0"
