# SPDX-License-Identifier: Apache-2.0
"""Runs a script of megatron-core on a machine without a GPU, as `python SCRIPT ARGS...` does with a
GPU.

    on_cpu.py SCRIPT ARGS...
"""

import runpy
import sys
import warnings

warnings.simplefilter("ignore")

import cpu_shim  # noqa: E402  before megatron

if __name__ == "__main__":
    cpu_shim.after_import()
    del sys.argv[0]
    runpy.run_path(sys.argv[0], run_name="__main__")
