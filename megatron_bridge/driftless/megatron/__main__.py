# SPDX-License-Identifier: Apache-2.0
import sys

from .launch import main

sys.exit(main())
