# SPDX-License-Identifier: Apache-2.0
"""Small models that need no model hub."""
