"""Ranks as threads of one process, which meet at a barrier for each collective."""

from contextvars import copy_context
from threading import Barrier, BrokenBarrierError, Thread

import torch

from statespan import sequence_parallel
from statespan.ops.parallel import Ranks


class ThreadRanks(Ranks):
    """The ranks share a list in which each leaves its tensor."""

    def __init__(self, rank, size, barrier, board):
        super().__init__(rank, size)
        self.barrier, self.board = barrier, board

    def _exchange(self, x):
        self.board[self.rank] = x
        self.barrier.wait(60)
        everyone = list(self.board)
        self.barrier.wait(60)
        return everyone

    def _all_gather(self, x):
        return torch.stack(self._exchange(x))

    def _all_to_all(self, x):
        return torch.stack([sent[self.rank] for sent in self._exchange(x)])


def run(size, work):
    """The results of ``work(shards)`` on each of the ranks."""
    barrier, board = Barrier(size), [None] * size
    results, errors = [None] * size, [None] * size

    def enter(rank):
        try:
            with sequence_parallel(ThreadRanks(rank, size, barrier, board)) as shards:
                results[rank] = work(shards)
        except BaseException as error:
            errors[rank] = error
            barrier.abort()

    threads = [Thread(target=copy_context().run, args=(enter, rank)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = [error for error in errors if error is not None]
    for error in sorted(found, key=lambda error: isinstance(error, BrokenBarrierError)):
        raise error
    return results
