"""Worker processes of the experiments."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager

import torch


@contextmanager
def worker_pool(count: int) -> Iterator[ProcessPoolExecutor]:
    """A pool of processes with one thread each, which are stopped if the block fails.

    Raises:
        OSError: A worker process was killed.
    """
    others = set(multiprocessing.active_children())
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(count, spawn, torch.set_num_threads, (1,)) as pool:
        try:
            yield pool
        except BrokenProcessPool as error:
            raise OSError("a worker was killed; is there enough memory?") from error
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for worker in set(multiprocessing.active_children()) - others:
                worker.terminate()  # otherwise they would finish their jobs first
            raise
