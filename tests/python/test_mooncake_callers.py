"""What serving engines do with mooncake.engine: the same calls, in the same order, with the same
kinds of arguments. Each class stands for a caller and has what that caller relies on."""

from __future__ import annotations

import concurrent.futures
import ctypes
import json
import time
from typing import Any

import numpy as np
import pytest
from conftest import LONG

engine = pytest.importorskip("mooncake.engine", reason="moonpool-mooncake is not installed")


class VllmWorker:
    """MooncakeConnector's worker: one engine, whole storages registered at once, ten sender threads
    that write synchronously; nothing is unregistered or closed."""

    LAYERS, BLOCKS, BLOCK_BYTES = 4, 32, 4096

    def __init__(self) -> None:
        from mooncake.engine import TransferEngine

        self.engine = TransferEngine()
        result = self.engine.initialize("127.0.0.1", "P2PHANDSHAKE", "rdma", "")
        assert result == 0
        self.rpc_port = self.engine.get_rpc_port()
        self.caches = [
            np.zeros((self.BLOCKS, self.BLOCK_BYTES), dtype=np.uint8) for _ in range(self.LAYERS)
        ]
        pointers = [cache.ctypes.data for cache in self.caches]
        lengths = [cache.nbytes for cache in self.caches]
        assert self.engine.batch_register_memory(pointers, lengths) == 0
        self.pool = concurrent.futures.ThreadPoolExecutor(max_workers=10)

    def send_blocks(
        self, host: str, port: int, remote_bases: list[int], blocks: list[tuple[int, int]]
    ) -> Any:
        source, target, lengths = [], [], []
        for cache, remote in zip(self.caches, remote_bases):
            for mine, theirs in blocks:
                source.append(cache.ctypes.data + mine * self.BLOCK_BYTES)
                target.append(remote + theirs * self.BLOCK_BYTES)
                lengths.append(self.BLOCK_BYTES)
        return self.pool.submit(
            self.engine.batch_transfer_sync_write, f"{host}:{port}", source, target, lengths
        )


def test_vllm_prefill_pushes_blocks_to_decode() -> None:
    prefill, decode = VllmWorker(), VllmWorker()
    for layer, cache in enumerate(prefill.caches):
        cache[:] = np.arange(VllmWorker.BLOCKS, dtype=np.uint8)[:, None] + 100 * (layer % 2)
    bases = [cache.ctypes.data for cache in decode.caches]
    sent = [
        prefill.send_blocks(
            "127.0.0.1", decode.rpc_port, bases, [(i, 31 - i), ((i + 10) % 32, 31 - (i + 10) % 32)]
        )
        for i in range(20)
    ]
    assert [one.result(LONG) for one in sent] == [0] * 20
    for layer, cache in enumerate(decode.caches):
        for i in range(20):
            assert (cache[31 - i] == i + 100 * (layer % 2)).all()


def test_vllm_request_to_a_worker_that_is_gone_fails() -> None:
    prefill = VllmWorker()
    result = prefill.send_blocks("127.0.0.1", 1, [4096] * 4, [(0, 0)]).result(LONG)
    assert result != 0


class SglangEngine:
    """MooncakeTransferEngine's wrapper, and the KV manager's registrations: large pages and small,
    unaligned aux buffers in one call."""

    def __init__(self) -> None:
        from mooncake.engine import TransferEngine

        self.engine = TransferEngine()
        assert self.engine.initialize("127.0.0.1", "P2PHANDSHAKE", "rdma", "") == 0
        self.session_id = f"127.0.0.1:{self.engine.get_rpc_port()}"

    def batch_register(self, pointers: list[int], lengths: list[int]) -> None:
        assert hasattr(self.engine, "batch_register_memory")
        assert self.engine.batch_register_memory(pointers, lengths) == 0

    def batch_transfer_sync(
        self, session: str, buffers: list[int], peers: list[int], lengths: list[int]
    ) -> int:
        assert hasattr(self.engine, "batch_transfer_sync_write")
        return int(self.engine.batch_transfer_sync_write(session, buffers, peers, lengths))


def test_sglang_prefill_decode_with_aux_data() -> None:
    prefill, decode = SglangEngine(), SglangEngine()
    pages = [np.zeros(1 << 18, dtype=np.uint8) for _ in range(2)]
    aux = [np.zeros(1000, dtype=np.uint8) for _ in range(2)]
    for side, one in enumerate((prefill, decode)):
        pointers = [pages[side].ctypes.data, aux[side].ctypes.data + 3]
        one.batch_register(pointers, [pages[side].nbytes, 64])
    pages[0][:] = 11
    aux[0][3:67] = 12
    token = 2048
    count = pages[0].nbytes // token
    offsets = [token * i for i in range(count)]
    source = [pages[0].ctypes.data + offset for offset in offsets]
    target = [pages[1].ctypes.data + offset for offset in offsets]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        parts = [
            pool.submit(
                prefill.batch_transfer_sync, decode.session_id, source[i::4], target[i::4],
                [token] * len(source[i::4]),
            )
            for i in range(4)
        ]  # fmt: skip
        assert [part.result(LONG) for part in parts] == [0] * 4
    result = prefill.engine.transfer_sync_write(
        decode.session_id, aux[0].ctypes.data + 3, aux[1].ctypes.data + 3, 64
    )
    assert result == 0
    assert (pages[1] == 11).all()
    assert aux[1].tolist() == [0] * 3 + [12] * 64 + [0] * 933
    assert decode.engine.batch_unregister_memory([pages[1].ctypes.data]) == 0
    assert prefill.batch_transfer_sync(decode.session_id, source[:1], target[:1], [8]) < 0
    assert decode.engine.batch_register_memory([pages[1].ctypes.data], [1 << 18]) == 0
    assert prefill.batch_transfer_sync(decode.session_id, source[:1], target[:1], [8]) == 0


def test_sglang_probes_a_failed_session() -> None:
    prefill, decode = SglangEngine(), SglangEngine()
    assert prefill.engine.send_probe(decode.session_id) == 0
    session = decode.session_id
    del decode
    assert prefill.engine.send_probe(session) != 0


def test_sglang_reads_weights_and_shares_the_engine() -> None:
    owner, reader = SglangEngine(), SglangEngine()
    weights = np.arange(1 << 16, dtype=np.float32)
    copy = np.zeros_like(weights)
    assert owner.engine.register_memory(weights.ctypes.data, weights.nbytes) == 0
    assert reader.engine.register_memory(copy.ctypes.data, copy.nbytes) == 0
    half = weights.nbytes // 2
    assert (
        reader.engine.batch_transfer_sync_read(
            owner.session_id,
            [copy.ctypes.data, copy.ctypes.data + half],
            [weights.ctypes.data, weights.ctypes.data + half],
            [half, half],
        )
        == 0
    )
    assert (copy == weights).all()
    assert reader.engine.get_engine() is reader.engine.get_engine()


def test_lmcache_channel_reads_and_polls() -> None:
    """LMCache's channel: async read, then transfer_check_status until it is not 0."""
    owner, reader = SglangEngine(), SglangEngine()
    source, target = (np.zeros(64 << 14, dtype=np.uint8) for _ in range(2))
    assert owner.engine.register_memory(source.ctypes.data, source.nbytes) == 0
    assert reader.engine.register_memory(target.ctypes.data, target.nbytes) == 0
    source[:] = 77
    offsets = [(1 << 14) * i for i in range(64)]
    batch = reader.engine.batch_transfer_async_read(
        owner.session_id,
        [target.ctypes.data + offset for offset in offsets],
        [source.ctypes.data + offset for offset in offsets],
        [1 << 14] * 64,
    )
    assert batch != 0
    deadline = time.monotonic() + LONG
    while (status := reader.engine.transfer_check_status(batch)) == 0:
        assert time.monotonic() < deadline
    assert status == 1
    assert (target == 77).all()


def test_flexkv_notifies_without_data() -> None:
    """FlexKV: transfer_sync with length 0 and a notification; JSON in the message."""
    from mooncake.engine import TransferNotify, TransferOpcode

    one, two = SglangEngine(), SglangEngine()
    message = json.dumps({"task": 7, "blocks": list(range(50))})
    memory = ctypes.create_string_buffer(64)
    address = ctypes.addressof(memory)
    assert one.engine.register_memory(address, 64) == 0
    assert two.engine.register_memory(address, 64) == 0
    result = one.engine.transfer_sync(
        two.session_id, address, address, 0, TransferOpcode.Write, TransferNotify("peer", message)
    )
    assert result == 0
    (notify,) = two.engine.get_notifies()
    assert (notify.name, json.loads(notify.msg)["task"]) == ("peer", 7)


def test_omni_connector_lifecycle() -> None:
    """vLLM-Omni: one pool, four writer threads, unregister at the end if there is such a method."""
    one, two = SglangEngine(), SglangEngine()
    pools = [np.zeros(1 << 20, dtype=np.uint8) for _ in range(2)]
    for side, pool in zip((one, two), pools):
        assert side.engine.register_memory(pool.ctypes.data, pool.nbytes) == 0
    pools[0][:] = 5
    with concurrent.futures.ThreadPoolExecutor(4) as executor:
        writes = [
            executor.submit(
                one.engine.batch_transfer_sync_write, two.session_id,
                [pools[0].ctypes.data + 1000 * i], [pools[1].ctypes.data + 1000 * i], [1000],
            )
            for i in range(100)
        ]  # fmt: skip
        assert all(write.result(LONG) == 0 for write in writes)
    assert (pools[1][:100_000] == 5).all()
    assert hasattr(one.engine, "unregister_memory")
    assert one.engine.unregister_memory(pools[0].ctypes.data) == 0
    assert isinstance(json.loads(one.engine.get_local_topology()), dict)
