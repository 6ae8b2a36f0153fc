# SPDX-License-Identifier: Apache-2.0
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

import jobs  # noqa: E402


@pytest.fixture(autouse=True)
def no_processes_left():
    yield
    jobs.stop_started()
