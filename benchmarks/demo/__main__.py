# SPDX-License-Identifier: Apache-2.0
import sys

from benchmarks.demo.demo import main

sys.exit(main())
