# SPDX-License-Identifier: Apache-2.0
"""A cache of a model hub, made up on disk: blobs by their hash, and snapshots of links to them."""

import hashlib
import os
from pathlib import Path

REVISION = "8f0ac1d6c2f5b9a3e4d7"


def add_to_cache(cache, model, checkpoint, revision=REVISION, under=""):
    """Puts the files of a checkpoint into the cache as `model`, "org/name"; returns the snapshot's
    directory, or that of `under` in it."""
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
