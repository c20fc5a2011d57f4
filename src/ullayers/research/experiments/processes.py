"""Worker processes of the experiments."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager

import torch

from ullayers.errors import UserError


@contextmanager
def worker_pool(count: int) -> Iterator[ProcessPoolExecutor]:
    """Open a pool of processes with one thread each; stop them if the block fails.

    Raises:
        UserError: A worker process was killed.
    """
    others = set(multiprocessing.active_children())
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(count, spawn, torch.set_num_threads, (1,)) as pool:
        try:
            yield pool
        except BrokenProcessPool as error:
            raise UserError("a worker was killed; is there enough memory?") from error
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for worker in set(multiprocessing.active_children()) - others:
                worker.terminate()  # otherwise they would finish their jobs first
            raise
