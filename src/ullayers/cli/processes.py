"""`ul learn` in several processes, started by `torchrun`.

All processes read the inputs and train one network together. The first one writes the run folder
and everything in it; the others work in a temporary folder and end with the training.
"""

from __future__ import annotations

import os
import signal
import tempfile
import time
import uuid
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from ullayers.errors import UserError

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]

# Files that another process needs to continue from a checkpoint.
RESUMED_FILES = ("config.json", "metrics.jsonl", "model.safetensors", "checkpoint/*")

TIMEOUT = timedelta(minutes=10)  # for other processes, which may read more slowly
POLL_SECONDS = 0.05  # between answers to starting processes
FIRST_CONFIG = "ullayers/config"  # key in the store


def process_count() -> int:
    """Return the number of processes started by `torchrun`; 1 without it."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def writes_results() -> bool:
    """Return whether this process is the one that writes results."""
    return process_count() == 1 or os.environ.get("RANK", "0") == "0"


@contextmanager
def together(arguments: Namespace) -> Iterator[None]:
    """Connect the processes started by `torchrun`; do nothing without it.

    Args:
        arguments: Parsed command line, changed in place.

    Raises:
        UserError: The command does not support several processes.
    """
    if process_count() == 1:
        yield
        return
    if arguments.command != "learn":
        raise UserError(f"ul {arguments.command} runs in one process; start it without torchrun")
    import torch.distributed as dist

    try:
        with _explained(
            "cannot connect to the other processes; on several machines, set GLOO_SOCKET_IFNAME "
            "(NCCL_SOCKET_IFNAME for GPUs) to the network interface between them, such as eth0"
        ):
            store = _connect()
        with (
            _explained(
                "another process has ended, see its message; if it died, continue with --resume "
                "or let torchrun --max-restarts do so"
            ),
            _own_folder(arguments, store),
        ):
            yield
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


@contextmanager
def _explained(message: str) -> Iterator[None]:
    """Replace connection errors by one that says what to do."""
    import torch.distributed as dist

    try:
        yield
    except RuntimeError as error:
        if not isinstance(error, dist.DistError) and "gloo" not in str(error).lower():
            raise
        raise UserError(message) from error


def _connect() -> Store:
    import torch
    import torch.distributed as dist
    from torch.distributed import PrefixStore  # type: ignore[attr-defined]
    from torch.distributed.rendezvous import rendezvous

    # A process that waits for others does not handle a signal unless the signal ends it. Only the
    # first process has something to save, once it is connected.
    handler = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    backend = "gloo"
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        backend = "cpu:gloo,cuda:nccl"
    store: Store
    store, rank, count = next(rendezvous("env://", timeout=TIMEOUT))
    own_keys = PrefixStore(_agree_on_name(store, rank, count), store)
    dist.init_process_group(backend, store=own_keys, rank=rank, world_size=count, timeout=TIMEOUT)
    if writes_results():
        signal.signal(signal.SIGTERM, handler)
    return store


def _agree_on_name(store: Store, rank: int, count: int) -> str:
    """Return a name shared by all processes of this start, and by no earlier start.

    `torchrun` keeps its store when it restarts the processes, with the addresses of those that have
    died. Without a new prefix, a process may try to connect to one of these. The number of restarts
    cannot be used, because each machine counts only its own restarts.

    The first process chooses the name. It cannot tell whether a process that it finds in the store
    is still alive, so it answers the latest one of each rank until that one has confirmed.

    Raises:
        UserError: A process is missing.
    """
    own = uuid.uuid4().hex
    if rank > 0:
        store.set(f"process/{rank}", own)
        name = store.get(f"name/{own}").decode()
        store.set(f"confirmed/{name}/{rank}", "")
        return name
    deadline = time.monotonic() + TIMEOUT.total_seconds()
    for other in range(1, count):
        while not store.check([f"confirmed/{own}/{other}"]):
            if time.monotonic() > deadline:
                raise UserError(f"the process of rank {other} did not connect; see its messages")
            store.set(f"name/{store.get(f'process/{other}').decode()}", own)
            time.sleep(POLL_SECONDS)
    return own


@contextmanager
def _own_folder(arguments: Namespace, store: Store) -> Iterator[None]:
    import torch.distributed as dist

    is_first = writes_results()
    if is_first and _has_begun(arguments, store):
        _continue_after_restart(arguments)
    kept: list[dict[str, bytes] | None] = [_files(arguments) if is_first else None]
    dist.broadcast_object_list(kept)
    if is_first:
        yield
        return
    with tempfile.TemporaryDirectory() as folder:
        files = kept[0]
        arguments.out = str(Path(folder, "run"))
        arguments.quiet = True
        arguments.resume = files is not None
        arguments.force = False
        for name, content in (files or {}).items():
            path = Path(arguments.out, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        yield


def _has_begun(arguments: Namespace, store: Store) -> bool:
    """Return whether an earlier start of this job has begun the run in --out.

    A run that was there before the first start must be neither continued nor replaced. `torchrun`
    keeps its store when it restarts the processes, so the first start writes there which
    config.json it has found.
    """
    try:
        found = Path(arguments.out, "config.json").stat()
        config = f"{found.st_ino} {found.st_mtime_ns}"
    except OSError:
        config = "none"
    if not store.check([FIRST_CONFIG]):
        store.set(FIRST_CONFIG, config)
        return False
    return bool(store.get(FIRST_CONFIG).decode() != config)


def _continue_after_restart(arguments: Namespace) -> None:
    """Resume the run that this job has begun, or begin it again."""
    if arguments.resume:
        return
    if Path(arguments.out, "checkpoint", "state.json").exists():
        arguments.resume = True
    elif Path(arguments.out, "config.json").exists():  # it died before the first checkpoint
        arguments.force = True


def _files(arguments: Namespace) -> dict[str, bytes] | None:
    """Return the files of the run to resume; None to start from the beginning."""
    if not arguments.resume:
        return None
    folder = Path(arguments.out)
    found = [path for pattern in RESUMED_FILES for path in folder.glob(pattern) if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}
