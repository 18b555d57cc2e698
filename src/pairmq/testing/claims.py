"""Tests that every `pairmq.transport.ClaimStore` must pass, for authors of one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from pairmq.transport import Claim, ClaimStore

Wait = Callable[[float], Awaitable[None]]


async def check_claim_store(store: ClaimStore, wait: Wait = asyncio.sleep) -> None:
    """Put a fresh store through all that `ClaimStore` promises; about 5 s of its time.

    Args:
        store: knows nothing yet.
        wait: lets seconds of the store's time pass.

    Raises:
        AssertionError: it breaks a promise; the line says which.
    """
    # Claims exclude each other, and one's own may be claimed again: its answer may have been lost.
    assert await store.claim("a", "one", 60) is Claim.WON
    assert await store.claim("a", "one", 60) is Claim.WON
    assert await store.claim("a", "two", 60) is Claim.HELD
    assert await store.claim("b", "two", 60) is Claim.WON

    # Only its holder renews or releases a claim.
    assert await store.renew("a", "one", 60)
    assert not await store.renew("a", "two", 60)
    assert not await store.renew("another's", "one", 60)
    await store.release("a", "two")
    assert await store.claim("a", "two", 60) is Claim.HELD
    await store.release("a", "one")
    await store.release("a", "one")
    assert await store.claim("a", "two", 60) is Claim.WON

    # A handled message is done for every consumer, and can't be released or renewed.
    assert await store.confirm("a", "two", 60)
    assert await store.confirm("a", "two", 60)
    await store.release("a", "two")
    assert not await store.renew("a", "two", 60)
    assert await store.claim("a", "two", 60) is Claim.DONE
    assert await store.claim("a", "one", 60) is Claim.DONE

    # A lease expires by itself; its former holder may still have done the work, which is then recorded.
    assert await store.claim("c", "one", 0.5) is Claim.WON
    await wait(0.7)
    assert not await store.renew("c", "one", 60)
    assert await store.claim("c", "two", 60) is Claim.WON
    assert not await store.confirm("c", "one", 60)
    assert await store.claim("c", "two", 60) is Claim.DONE

    # A renewed lease lasts longer than the first one.
    key = "d"
    while True:
        began = time.monotonic()
        assert await store.claim(key, "one", 3) is Claim.WON
        renewed = await store.renew(key, "one", 60)
        if renewed or time.monotonic() - began < 3:
            break
        key += "d"  # this machine stalled until the lease had expired
    assert renewed
    await wait(3.2)
    assert await store.claim(key, "two", 60) is Claim.HELD

    # A window ends.
    assert await store.claim("e", "one", 60) is Claim.WON
    assert await store.confirm("e", "one", 0.5)
    await wait(0.7)
    assert await store.claim("e", "two", 60) is Claim.WON
