"""Claims in memory."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pairmq import MemoryClaims
from pairmq.testing import in_virtual_time, run_virtual
from pairmq.testing.claims import check_claim_store
from pairmq.transport import Claim


@in_virtual_time
async def test_memory_keeps_what_a_store_promises():
    await check_claim_store(MemoryClaims())


@in_virtual_time
async def test_memory_forgets_the_oldest_and_never_what_is_held():
    store = MemoryClaims(entries=3)
    await store.claim("held", "t", 600)
    for n in range(10):
        await store.claim(str(n), "t", 600)
        await store.confirm(str(n), "t", 600)
        assert len(store) <= 4
    assert await store.claim("held", "other", 1) is Claim.HELD
    assert await store.claim("9", "other", 1) is Claim.DONE
    assert await store.claim("0", "other", 1) is Claim.WON


@in_virtual_time
async def test_memory_forgets_what_is_over():
    store = MemoryClaims()
    for n in range(100):
        await store.claim(str(n), "t", 1)
        await store.confirm(str(n), "t", 10)
    await asyncio.sleep(11)
    await store.claim("new", "t", 1)
    await store.confirm("new", "t", 10)
    assert len(store) == 1


STEPS = st.lists(
    st.tuples(
        st.sampled_from(("claim", "renew", "confirm", "release", "wait")),
        st.sampled_from(("a", "b")),
        st.sampled_from(("one", "two", "three")),
        st.sampled_from((1.0, 5.0, 20.0)),
    ),
    max_size=40,
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(STEPS)
def test_memory_does_what_a_plain_model_does(steps):
    """The model: for each key whose it is and until when, and until when it is done."""

    async def run():
        store, loop = MemoryClaims(), asyncio.get_running_loop()
        held: dict[str, tuple[str, float]] = {}
        done: dict[str, float] = {}
        for call, key, token, seconds in steps:
            now = loop.time()
            holder = held[key][0] if key in held and held[key][1] > now else None
            is_done = done.get(key, 0) > now
            if call == "wait":
                await asyncio.sleep(seconds)
            elif call == "claim":
                expected = Claim.DONE if is_done else Claim.WON if holder in (None, token) else Claim.HELD
                assert await store.claim(key, token, seconds) is expected
                if expected is Claim.WON:
                    held[key] = token, now + seconds
            elif call == "renew":
                assert await store.renew(key, token, seconds) == (holder == token)
                if holder == token:
                    held[key] = token, now + seconds
            elif call == "confirm":
                assert await store.confirm(key, token, seconds) == (holder == token or is_done)
                held.pop(key, None)
                done[key] = now + seconds
            else:
                await store.release(key, token)
                if holder == token:
                    del held[key]

    run_virtual(run())


def test_a_store_without_room_is_refused():
    with pytest.raises(ValueError, match="entries"):
        MemoryClaims(0)
