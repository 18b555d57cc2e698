"""The mapping table: each thing that Redis or redis-py says has one kind and reason."""

from __future__ import annotations

import pytest
from redis import exceptions as driver
from redis.connection import DefaultParser

from pairmq.model import FailureKind, FailureReason
from pairmq_redis._errors import NotSent, Unanswered, failure, is_answer, leads_elsewhere

U, R, B, T = FailureKind.UNAVAILABLE, FailureKind.REFUSED, FailureKind.BUSY, FailureKind.TRANSIENT


@pytest.mark.parametrize(
    ("reply", "kind", "reason"),
    [
        ("LOADING Redis is loading the dataset in memory", U, FailureReason.OTHER),
        ("MASTERDOWN Link with MASTER is down", U, FailureReason.OTHER),
        ("READONLY You can't write against a read only replica.", U, FailureReason.OTHER),
        ("CLUSTERDOWN Hash slot not served", U, FailureReason.OTHER),
        ("TRYAGAIN Multiple keys request during rehashing of slot", T, FailureReason.OTHER),
        ("OOM command not allowed when used memory > 'maxmemory'.", U, FailureReason.QUOTA),
        ("MISCONF Redis is configured to save RDB snapshots", U, FailureReason.OTHER),
        ("NOREPLICAS Not enough good replicas to write.", U, FailureReason.OTHER),
        ("NOAUTH Authentication required.", R, FailureReason.UNAUTHORIZED),
        ("WRONGPASS invalid username-password pair or user is disabled.", R, FailureReason.UNAUTHORIZED),
        ("NOPERM User alice has no permissions to run the 'xadd' command", R, FailureReason.UNAUTHORIZED),
        ("ERR Protocol error: unauthenticated multibulk length", R, FailureReason.UNAUTHORIZED),
        ("ERR Protocol error: unauthenticated bulk length", R, FailureReason.UNAUTHORIZED),
        ("ERR ACL failure in script: User alice has no permissions", R, FailureReason.UNAUTHORIZED),
        ("ERR AUTH <password> called without any password configured", R, FailureReason.UNAUTHORIZED),
        ("BUSY Redis is busy running a script.", B, FailureReason.OTHER),
        ("ERR max number of clients reached", U, FailureReason.CONNECTION),
        ("WRONGTYPE Operation against a key holding the wrong kind of value", R, FailureReason.DISABLED),
        ("NOGROUP No such key 'x' or consumer group 'y'", R, FailureReason.NOT_FOUND),
        ("ERR no such key", R, FailureReason.NOT_FOUND),
        ("UNBLOCKED the stream key no longer exists", R, FailureReason.NOT_FOUND),
        ("UNBLOCKED force unblock from blocking operation, instance state changed", U, FailureReason.CONNECTION),
        ("UNBLOCKED client unblocked via CLIENT UNBLOCK", U, FailureReason.CONNECTION),
        ("NOENTITY no such queue or topic", R, FailureReason.NOT_FOUND),
        ("OTHERKIND the name belongs to a topic", R, FailureReason.ALREADY_EXISTS),
        ("MOVED 3999 127.0.0.1:6381", R, FailureReason.DISABLED),
        ("ERR unknown command 'XADD'", R, FailureReason.DISABLED),
        ("ERR DB index is out of range", R, FailureReason.DISABLED),
        ("ERR Protocol error: invalid bulk length", R, FailureReason.TOO_LARGE),
    ],
)
def test_an_error_reply_has_one_meaning(reply: str, kind: FailureKind, reason: FailureReason) -> None:
    error = DefaultParser.parse_error(reply)
    assert is_answer(error)
    made = failure(error, "send to orders")
    assert (made.kind, made.reason, made.maybe_applied) == (kind, reason, False)
    assert str(made).startswith("send to orders: ")
    # The server answered, so that nothing was done, even where redis-py sees a broken connection.
    assert not failure(Unanswered(error), "send").maybe_applied


@pytest.mark.parametrize("reply", ["ERR something new", "upstream failure"])
def test_an_unknown_reply_may_come_from_a_proxy_that_lost_its_server(reply: str) -> None:
    error = DefaultParser.parse_error(reply)
    made, unsent = failure(error, "send to orders"), failure(NotSent(error), "send to orders")
    assert (made.kind, made.reason, made.maybe_applied) == (U, FailureReason.OTHER, True)
    assert (unsent.kind, unsent.reason, unsent.maybe_applied) == (U, FailureReason.OTHER, False)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (driver.ConnectionError("Connection closed by server."), FailureReason.CONNECTION),
        (ConnectionResetError(104, "Connection reset by peer"), FailureReason.CONNECTION),
        (driver.TimeoutError("Timeout connecting to server"), FailureReason.TIMEOUT),
        (TimeoutError(), FailureReason.TIMEOUT),
        (driver.InvalidResponse("Protocol Error"), FailureReason.CONNECTION),
        (OSError("unreachable"), FailureReason.CONNECTION),
    ],
)
def test_silence_is_unavailable(error: Exception, reason: FailureReason) -> None:
    lost, unsent = failure(Unanswered(error), "send"), failure(NotSent(error), "send")
    assert (lost.kind, lost.reason, lost.maybe_applied) == (U, reason, True)
    assert (unsent.kind, unsent.reason, unsent.maybe_applied) == (U, reason, False)
    assert lost.__cause__ is error


def test_the_words_of_our_own_scripts_are_for_the_table_only() -> None:
    made = failure(DefaultParser.parse_error("OTHERKIND the name belongs to a topic"), "create orders")
    assert str(made) == "create orders: there is an entity of another kind by this name"


def test_a_refused_user_is_named_nowhere() -> None:
    made = failure(DefaultParser.parse_error("NOPERM User alice has no permissions"), "send")
    assert "alice" not in f"{made!r} {made.__cause__!r}"


@pytest.mark.parametrize(
    ("reply", "elsewhere"),
    [
        ("READONLY You can't write against a read only replica.", True),
        ("READONLY You can't write against a read only replica. script: a, on @user_script:9.", True),
        ("MASTERDOWN Link with MASTER is down", True),
        ("CLUSTERDOWN Hash slot not served", True),
        ("LOADING Redis is loading the dataset in memory", True),
        ("NOREPLICAS Not enough good replicas to write.", True),
        ("UNBLOCKED force unblock from blocking operation, instance state changed", True),
        ("MOVED 3999 127.0.0.1:6381", True),
        ("ASK 3999 127.0.0.1:6381", True),
        ("NOAUTH Authentication required.", True),
        ("WRONGPASS invalid username-password pair or user is disabled.", True),
        ("NOPERM User alice has no permissions to run the 'xadd' command", False),
        ("OOM command not allowed when used memory > 'maxmemory'.", False),
        ("MISCONF Redis is configured to save RDB snapshots", False),
        ("BUSY Redis is busy running a script.", False),
        ("NOENTITY no such queue or topic", False),
    ],
)
def test_an_answer_ends_the_connection_when_it_is_about_the_server(reply: str, elsewhere: bool) -> None:
    assert leads_elsewhere(DefaultParser.parse_error(reply)) is elsewhere
