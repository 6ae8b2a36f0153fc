# SPDX-License-Identifier: Apache-2.0
"""A model hub's cache made on disk: blobs named by their hash, and snapshots with links to them."""

import hashlib
import os
from pathlib import Path

REVISION = "8f0ac1d6c2f5b9a3e4d7"


def add_to_cache(cache, model, checkpoint, revision=REVISION, under=""):
    """Puts a checkpoint's files into the cache as `model`, "org/name". Returns the snapshot's
    directory, or its folder `under`."""
    repository = Path(cache) / f"models--{model.replace('/', '--')}"
    blobs, snapshot = repository / "blobs", repository / "snapshots" / revision / under
    for directory in (blobs, repository / "refs", snapshot):
        directory.mkdir(parents=True, exist_ok=True)
    (repository / "refs/main").write_text(revision)
    for file in Path(checkpoint).iterdir():
        blob = blobs / hashlib.sha256(file.read_bytes()).hexdigest()
        blob.write_bytes(file.read_bytes())
        (snapshot / file.name).symlink_to(os.path.relpath(blob, snapshot))
    return snapshot
