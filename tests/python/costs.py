"""What calls cost through Python: per call, per descriptor, per registration. Prints a table.

    python tests/python/costs.py

Not a test: figures depend on the machine. The bars are 5 us per call, 200 ns per descriptor given as
lists of ints, 20 ns given as arrays, and 200 B per registered region.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import moonpool


def seconds(call: Callable[[], Any], after: Callable[[Any], Any], repeats: int) -> float:
    """The median time of `call`; `after` gets its result and is not counted."""
    taken = []
    for _ in range(repeats):
        start = time.perf_counter()
        result = call()
        taken.append(time.perf_counter() - start)
        after(result)
    return statistics.median(taken)


def resident_bytes() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * 4096


def main() -> None:
    with moonpool.Engine() as engine, moonpool.Engine() as other:
        size = 64 << 20
        local, remote = engine.allocate(size), other.allocate(size)
        segment = engine.open(other.address)

        def submit(a: Any, b: Any, c: Any) -> Callable[[], moonpool.Batch]:
            return lambda: engine.write(segment, a, b, c)

        one = seconds(submit(local.address, remote.address, 8), lambda batch: batch.wait(), 2000)
        print(f"submit one descriptor      {one * 1e6:8.2f} us")
        done = engine.write(segment, local.address, remote.address, 8).wait()
        print(f"wait for a finished batch  {seconds(done.wait, id, 2000) * 1e6:8.2f} us")
        print(f"info                       {seconds(engine.info, id, 200) * 1e6:8.2f} us")
        count = 20_000
        offsets = np.arange(count, dtype=np.uint64) * np.uint64(128)
        arrays = (offsets + np.uint64(local.address), offsets + np.uint64(remote.address),
                  np.full(count, 64, dtype=np.uint64))  # fmt: skip
        lists = tuple(array.tolist() for array in arrays)
        native = engine._native
        parse_lists = seconds(lambda: native.count_descriptors(*lists), id, 50)
        parse_arrays = seconds(lambda: native.count_descriptors(*arrays), id, 50)
        print(f"descriptor from lists      {parse_lists / count * 1e9:8.1f} ns (reading them)")
        print(f"descriptor from arrays     {parse_arrays / count * 1e9:8.1f} ns (reading them)")
        seconds(submit(*arrays), lambda batch: batch.wait(), 5)  # Touches the memory.
        by_lists = seconds(submit(*lists), lambda batch: batch.wait(), 30)
        by_arrays = seconds(submit(*arrays), lambda batch: batch.wait(), 30)
        print(f"descriptor, whole submit   {by_lists / count * 1e9:8.1f} ns by lists")
        print(f"descriptor, whole submit   {by_arrays / count * 1e9:8.1f} ns by arrays")
        memory = np.zeros(1 << 20, dtype=np.uint8)
        addresses = np.arange(100_000, dtype=np.uint64) * np.uint64(8)
        addresses += np.uint64(memory.ctypes.data)
        sizes = np.full(len(addresses), 8)
        before, start = resident_bytes(), time.perf_counter()
        regions = engine.register_many(addresses, sizes)
        taken, used = time.perf_counter() - start, resident_bytes() - before
        print(f"100,000 registrations      {taken:8.2f} s, {used / len(regions):.0f} B each in all, "
              f"{sys.getsizeof(regions[0])} B the object")  # fmt: skip
        start = time.perf_counter()
        engine.deregister_many(regions)
        print(f"100,000 deregistrations    {time.perf_counter() - start:8.2f} s")


if __name__ == "__main__":
    main()
