# SPDX-License-Identifier: Apache-2.0
"""Toy engines whose loaders copy in other threads."""

import _thread
import ctypes
import threading
from concurrent.futures import ThreadPoolExecutor, as_completed

from toy_engine import ToyEngine


class Pooled(ToyEngine):
    """As SGLang's DeepSeek: host tensors are copied in a pool, others are not."""

    def __init__(self, rank=0, tp=1, odd=()):
        super().__init__(rank, tp, odd)
        self.in_pool = 0

    def load_weights(self, weights):
        with ThreadPoolExecutor(max_workers=3) as pool:
            futures = []
            for name, tensor in weights:
                one = super().load_weights
                if tensor.device.type == "cpu":
                    self.in_pool += 1
                    futures.append(pool.submit(one, [(name, tensor)]))
                else:
                    one([(name, tensor)])
            for future in as_completed(futures):
                future.result()


class KeptPool(Pooled):
    """Copies every tensor in a pool that exists before the loader runs."""

    pool = ThreadPoolExecutor(max_workers=2)

    def load_weights(self, weights):
        one = ToyEngine.load_weights
        for future in [self.pool.submit(one, self, [pair]) for pair in weights]:
            future.result()


class Threaded(Pooled):
    """A thread for each tensor."""

    def load_weights(self, weights):
        one = ToyEngine.load_weights
        threads = [threading.Thread(target=one, args=(self, [pair])) for pair in weights]
        for each in threads:
            each.start()
        for each in threads:
            each.join()


class Hidden(Pooled):
    """Copies host tensors in threads that Driftless cannot observe."""

    def load_weights(self, weights):
        for name, tensor in weights:
            one = super(Pooled, self).load_weights
            if tensor.device.type != "cpu":
                one([(name, tensor)])
                continue
            done = threading.Lock()
            done.acquire()

            def work(pair=(name, tensor), one=one, done=done):
                try:
                    one([pair])
                finally:
                    done.release()

            _thread.start_new_thread(work, ())
            done.acquire()


class BelowTorch(ToyEngine):
    """Copies the embedding by pointers, as a C library does, if it is a host tensor: no operation
    of torch and no version counter shows the copy."""

    def __init__(self, rank=0, tp=1, odd=()):
        super().__init__(rank, tp, odd)

    def load_plain(self, name, tensor):
        if name != "embed.weight" or tensor.device.type != "cpu":
            return super().load_plain(name, tensor)
        for into in self.copies():
            ctypes.memmove(into.data_ptr(), tensor.data_ptr(), tensor.nbytes)

    def copies(self):
        return (self.embed.weight, self.head_copy)


class HalfBelowTorch(BelowTorch):
    """One of the two copies uses torch."""

    def load_plain(self, name, tensor):
        if name == "embed.weight":
            self.embed.weight.data.copy_(tensor)
        super().load_plain(name, tensor)

    def copies(self):
        return (self.head_copy,)


class Clearing(BelowTorch):
    """Clears the embedding first, whatever it gets."""

    def load_plain(self, name, tensor):
        if name == "embed.weight":
            ctypes.memset(self.embed.weight.data_ptr(), 0, self.embed.weight.nbytes)
        ToyEngine.load_plain(self, name, tensor)
