# SPDX-License-Identifier: Apache-2.0
"""torchvision's build for some machines has operators that its torch has not, and dies of them when
it is imported. SGLang imports it without using it."""

import sys
import types

NAME = "torchvision._meta_registrations"
sys.modules.setdefault(NAME, types.ModuleType(NAME))
