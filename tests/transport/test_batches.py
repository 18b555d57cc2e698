"""Batches that transports send in chunks."""

from __future__ import annotations

import asyncio

import pytest

from pairmq.model import FailureKind, TransportError
from pairmq.transport import in_chunks, is_nothing_sent, nothing_sent, send_chunks

FAILED = TransportError("refused", FailureKind.REFUSED)


@pytest.mark.parametrize(
    ("sizes", "chunks"),
    [
        ([], []),
        ([1, 1, 1, 1], [[1, 1, 1], [1]]),
        ([6, 4, 1], [[6, 4], [1]]),
        ([6, 5], [[6], [5]]),
        ([1, 90, 1], [[1], [90], [1]]),
    ],
)
def test_chunks_keep_to_both_limits_and_an_item_beyond_them_is_alone(sizes, chunks):
    assert list(in_chunks(sizes, lambda size: size, 3, 10)) == chunks


@pytest.mark.parametrize(("in_order", "expected"), [(False, [b"a", b"b", b"c"]), (True, [b"a", b"b"])])
async def test_nothing_is_sent_in_order_behind_a_chunk_that_failed(in_order, expected):
    sent = []

    async def send(chunk):
        sent.extend(chunk)
        if chunk == [b"b"]:
            raise FAILED
        return [None]

    outcomes = await send_chunks([[b"a"], [b"b"], [b"c"]], send, in_order=in_order)
    assert sent == expected
    assert outcomes[:2] == [None, FAILED]
    assert (outcomes[2] is None) is not in_order


@pytest.mark.parametrize("failing", ["first", "second"])
async def test_a_cancelled_batch_has_sent_nothing_only_if_its_first_chunk_had_not(failing):
    async def send(chunk):
        if chunk == [failing]:
            cancellation = asyncio.CancelledError()
            nothing_sent(cancellation)
            raise cancellation
        return [None]

    with pytest.raises(asyncio.CancelledError) as caught:
        await send_chunks([["first"], ["second"]], send)
    assert is_nothing_sent(caught.value) is (failing == "first")
