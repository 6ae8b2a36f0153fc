# SPDX-License-Identifier: Apache-2.0
"""Four ranks of sharded/fsdp_trainer.py in Ray actors: test_launchers.py.

    ray_fsdp.py CONFIG OUT PORT
"""

import os
import sys
from pathlib import Path

import ray

RANKS = 4


@ray.remote(num_cpus=0)
class Trainer:
    def train(self, rank, config, out, port):
        import driftless

        place = driftless.launch()
        assert (place.launcher, place.mpi, place.world) == ("ray", False, 0), place
        named = driftless.launch(rank=rank, world=RANKS)
        assert (named.rank, named.world, named.mpi) == (rank, RANKS, False), named
        try:
            driftless.Job(driftless.Config.parse("road: {kind: mpi_rma}"), "trainer")
        except driftless.Error as refused:
            assert "shared_fs" in str(refused) or "MPI" in str(refused), refused
        else:
            raise AssertionError("a trainer on mpi_rma was not refused")
        os.environ.update(
            RANK=str(rank), WORLD_SIZE=str(RANKS), MASTER_ADDR="127.0.0.1", MASTER_PORT=port
        )
        sys.path.insert(0, str(Path(__file__).resolve().parent / "sharded"))
        import fsdp_trainer

        sys.argv = ["fsdp_trainer.py", "fsdp", config, out]
        fsdp_trainer.main()


def main():
    os.environ.update(PMIX_RANK="0", OMPI_COMM_WORLD_RANK="0", OMPI_COMM_WORLD_SIZE="2")
    ray.init(num_cpus=2, include_dashboard=False, logging_level="ERROR")
    actors = [Trainer.remote() for _ in range(RANKS)]
    ray.get([actor.train.remote(rank, *sys.argv[1:]) for rank, actor in enumerate(actors)])
    ray.shutdown()


main()
