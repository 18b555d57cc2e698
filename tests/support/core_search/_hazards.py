"""The hazards of a naive failover, by number: what one would do at first, what comes of it, and the rule.

Each is a named check: planted in a world, the search has to find what it breaks; without it every world is clean.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from core_search import _design as worlds
from core_search._design import Design, Naive, Verdict, World


@dataclass(frozen=True, slots=True)
class Check:
    """Where a planted behaviour shows, and as what."""

    world: World
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Hazard:
    """One way in which a plainer design breaks a promise."""

    number: int  # by which documents name it
    name: str  # of what happens
    naive: Naive  # the behaviour that leads to it
    checks: tuple[Check, ...]  # the worlds in which it must be found, and the promise that it breaks there
    rule: str  # what rules it out
    clauses: str  # of the specification
    code: str  # how PairMQ's code keeps the rule
    tests: tuple[str, ...]  # of the real code that would notice, as ``file::name``
    mutants: tuple[str, ...] = ()  # names of the bugs of ``scripts/planted`` that plant it in the real code

    def planted(self, check: Check) -> Design:
        """The design with this behaviour in it, in the world of one of its checks."""
        return Design(check.world, frozenset((self.naive,)))


_CORE = "tests/core/test_hazards.py::"
_FAILOVER = "tests/runner/test_failover.py::"
_SENDS = "tests/runner/test_sends.py::"
_SYPHON = "tests/runner/test_syphon.py::"
_HOURS = "tests/simulator/test_simulated_hours.py::"
_ORDER = "tests/runner/test_order.py::"

HAZARDS: Final = (
    Hazard(
        1,
        "a confirmation is lost, and the message is sent again or diverted",
        Naive.UNMARKED_COPY,
        (Check(worlds.SENDS, Verdict.DUPLICATE), Check(worlds.LANE_IN_DOUBT, Verdict.DUPLICATE)),
        "An outcome is accepted, refused or unknown; the message id never changes, and a copy sent in doubt is marked.",
        "3.1, 3.2, 3.3",
        "`Job.unknown` stays set once an attempt may have been applied; the receipt and the envelope carry it.",
        (
            f"{_SENDS}test_a_lost_confirmation_marks_the_copy",
            f"{_SENDS}test_every_send_ends_by_its_deadline_with_a_correct_outcome",
            "tests/runner/test_backlog.py::test_a_confirmation_lost_by_a_backlog_queue_marks_the_second_copy",
        ),
        (
            "a receipt forgets that an attempt was in doubt",
            "the copy in the backlog is not marked",
            "a retry after a lost confirmation is not marked",
        ),
    ),
    Hazard(
        2,
        "the syphon dies between send and complete",
        Naive.COMPLETE_BEFORE_CONFIRM,
        (Check(worlds.RESTART, Verdict.LOST),),
        "Send, have it confirmed, complete, always in this order: a crash can bring a second copy, and loses nothing.",
        "7.1",
        "The pump settles only what the primary has confirmed.",
        (
            f"{_SYPHON}test_confirm_comes_before_complete",
            "tests/integration/test_file_through_kills.py"
            "::test_nothing_is_lost_when_the_primary_is_killed_twice_and_the_syphon_once",
        ),
        ("the syphon completes before it sends", "a message is settled before the primary has confirmed it"),
    ),
    Hazard(
        3,
        "new sends overtake the backlog",
        Naive.RETURN_WITH_BACKLOG,
        (Check(worlds.SESSIONS, Verdict.ORDER), Check(worlds.LONG_SESSION, Verdict.ORDER)),
        "A session with messages in the backlog keeps diverting until they are drained.",
        "8.3",
        'With `ordering="session"` a session returns only by a look at its queue that shows it drained (`KeyOrder`); '
        "without it new sends return at once, as documented.",
        (
            f"{_ORDER}test_a_diverted_session_keeps_diverting_to_its_queue_when_the_entity_is_back",
            f"{_ORDER}test_a_session_returns_when_another_process_has_drained_it",
            f"{_HOURS}test_sessions_keep_their_order",
        ),
        (
            "a session returns to the primary over its backlog",
            "a diverted send leaves its session clean",
            "a session is taken for drained with its last message still in the queue",
        ),
    ),
    Hazard(
        4,
        '"drained" is said while a diverted send is in flight',
        Naive.DRAINED_IN_FLIGHT,
        (Check(worlds.DRAIN, Verdict.FALSE_DRAINED),),
        "Only looks that begin after the last diverted send has ended count.",
        "4.5",
        "The machine counts diverted sends in flight, and believes no look from before the last of them ended.",
        (
            f"{_CORE}test_a_backlog_is_never_drained_while_a_diverted_send_is_in_flight",
            f"{_CORE}test_a_backlog_is_drained_only_by_a_look_that_began_after_the_last_diverted_send_ended",
            f"{_SYPHON}test_drained_is_not_said_while_a_diverted_send_is_in_flight",
            "tests/core/test_order.py::test_a_look_from_before_the_last_diverted_send_ended_does_not_count",
        ),
        (
            "drained is said while a diverted send is in flight",
            "a count is dated by its end instead of its beginning",
        ),
    ),
    Hazard(
        5,
        "an `await` between routing and registering a send",
        Naive.AWAIT_BETWEEN_ROUTE_AND_REGISTER,
        (Check(worlds.DRAIN, Verdict.FALSE_DRAINED),),
        "Routing and registering are one synchronous step.",
        "4.6",
        "`EntityRunner.route` is one call of the machine, which has no step that another task could interrupt.",
        (
            f"{_CORE}test_a_send_is_in_flight_as_soon_as_it_is_routed",
            f"{_CORE}test_the_machine_has_no_step_that_could_be_interrupted",
            f"{_FAILOVER}test_a_diverted_send_is_in_flight_before_any_other_task_can_run",
        ),
    ),
    Hazard(
        6,
        "process A failed over, process B hosts the syphon and did not",
        Naive.PUMP_ASKS_OWN_MACHINE,
        (Check(worlds.TWO_PROCESSES, Verdict.STRANDED),),
        "The syphon works whenever the primary takes messages, regardless of what its own process has seen.",
        "7.5",
        "The pumps ask gates of their own, which know nothing of the entity machines.",
        (
            f"{_SYPHON}test_what_another_process_diverted_is_moved_too",
            f"{_CORE}test_a_syphon_that_never_failed_over_still_starts_with_a_dirty_backlog",
            "tests/integration/test_file_through_an_outage.py::test_every_line_of_a_file_arrives_through_an_outage",
        ),
        ("the syphon waits until its own process has seen the entity recover",),
    ),
    Hazard(
        7,
        "one chain of four states: a success while failing forgets the backlog",
        Naive.ONE_CHAIN_OF_STATES,
        (Check(worlds.RESTART, Verdict.FALSE_DRAINED),),
        "Health and backlog are two facts; no row of the one touches the other.",
        "4",
        "The table has a health part and a backlog part; the visible state is derived from both.",
        (
            f"{_CORE}test_a_draining_entity_that_fails_and_recovers_is_still_draining",
            "tests/core/test_table.py::test_with_a_syphon_no_health_row_makes_the_backlog_clean",
            f"{_SYPHON}test_a_draining_entity_that_fails_and_recovers_forgets_nothing",
        ),
        ("a success while failing forgets the backlog",),
    ),
    Hazard(
        8,
        "one session over several backlog queues",
        Naive.SESSION_OVER_QUEUES,
        (Check(worlds.SESSION_QUEUES, Verdict.ORDER),),
        "A session's diverted messages all go to one backlog queue, chosen by a stable hash.",
        "8.2",
        'With `ordering="session"` `backlog_queue_of` is the only choice; without it a sender keeps one that works.',
        (
            f"{_ORDER}test_sends_of_a_session_whose_queue_is_unavailable_are_refused_and_no_other_queue_has_them",
            "tests/core/test_order.py::test_the_queue_of_a_session_never_changes",
            "tests/core/test_order.py::test_the_queue_of_a_session_is_the_same_in_every_process",
        ),
        ("a session's message takes any backlog queue", "a sender takes another backlog queue each time"),
    ),
    Hazard(
        9,
        "an unreachable backlog queue counted as empty",
        Naive.UNREACHABLE_IS_EMPTY,
        (Check(worlds.DRAIN, Verdict.FALSE_DRAINED), Check(worlds.SESSIONS, Verdict.ORDER)),
        "A queue is empty when it was reached and seen empty.",
        "4.5",
        "`EmptyWatch` forgets a queue that could not be reached; a session whose queue can't be asked stays diverted.",
        (
            f"{_CORE}test_an_unreachable_queue_keeps_the_entity_draining",
            f"{_CORE}test_a_queue_that_can_no_longer_be_reached_takes_the_emptiness_back",
            f"{_SYPHON}test_an_unreachable_queue_is_not_empty",
            f"{_ORDER}test_an_unknown_session_is_refused_while_its_queue_cannot_be_looked_at",
        ),
        (
            "a backlog queue that can't be reached counts as empty",
            "a backlog queue that can't be asked counts as drained for a session",
        ),
    ),
    Hazard(
        10,
        "a restart, or a close in mid-drain, forgets the backlog",
        Naive.RESTART_IS_CLEAN,
        (Check(worlds.RESTART, Verdict.FALSE_DRAINED), Check(worlds.SESSION_RESTART, Verdict.ORDER)),
        "A pair starts with a backlog, until every queue was seen empty.",
        "4.5",
        "The machine of a process with a syphon begins as dirty.",
        (
            f"{_CORE}test_a_restarted_process_drains_before_it_is_healthy",
            f"{_SYPHON}test_a_pair_starts_dirty_and_is_healthy_once_every_queue_was_seen_empty",
            f"{_ORDER}test_a_restarted_process_does_not_overtake_what_its_predecessor_left",
        ),
        ("a pair with a syphon starts clean", "a restarted process takes every session for clean"),
    ),
    Hazard(
        11,
        "a stale result of an old send moves the state",
        Naive.RESULTS_WITHOUT_EPOCHS,
        (Check(worlds.SENDS, Verdict.STATE),),
        "Each attempt carries the epoch in which it was made; a result of an earlier one is counted and moves nothing.",
        "4.6",
        "The machine turns such a result into the symbol LATE, whose rows lead nowhere.",
        (
            f"{_CORE}test_a_late_success_never_leaves_failed_over",
            f"{_CORE}test_a_late_failure_never_fails_a_recovered_entity_again",
            f"{_CORE}test_a_success_from_before_the_first_failure_does_not_end_the_failing",
            f"{_FAILOVER}test_a_late_success_is_accepted_and_leaves_the_state_alone",
        ),
        ("a late result moves the state",),
    ),
    Hazard(
        12,
        "pings pass while sends are refused",
        Naive.PINGS_AT_ONCE,
        (Check(worlds.QUOTA, Verdict.LIVELOCK),),
        "The probe writes for real; the first real message is a canary; an entity that flaps is asked for more, later.",
        "4.8, 6.2",
        "A health of its own (TRIAL) until the canary is confirmed, and a growing number of good pings and waits.",
        (
            f"{_CORE}test_the_first_send_after_a_recovery_is_a_canary",
            f"{_CORE}test_an_entity_whose_pings_pass_while_its_sends_fail_is_tried_ever_more_rarely",
            f"{_FAILOVER}test_good_pings_with_failing_sends_do_not_livelock",
            "tests/integration/test_rabbitmq_outages.py::test_queue_full_with_reject_publish",
        ),
        ("a good ping is enough, and no canary follows", "a flapping entity needs no more pings than before"),
    ),
    Hazard(
        13,
        "the time-to-live runs out in the backlog",
        Naive.TTL_RUNS_IN_BACKLOG,
        (Check(worlds.EXPIRY, Verdict.LOST),),
        "The backlog form has none: an alias keeps it; expired messages are dead-lettered by the syphon and counted.",
        "5.6",
        "`divert` clears it and `restore` puts it back; the pump dead-letters expired messages by `ttl_policy`.",
        (
            f"{_SYPHON}test_restored_messages_get_their_whole_time_to_live",
            f"{_SYPHON}test_time_in_the_backlog_counts_with_elapse",
            f"{_SYPHON}test_what_runs_out_while_its_destination_is_unavailable_is_dead_lettered_with_elapse",
        ),
        ("the time-to-live runs in the backlog", "the time-to-live is not restored", "an expired message is delivered"),
    ),
    Hazard(
        14,
        "a cancelled send is reported as not sent",
        Naive.CANCELLED_IS_NOT_SENT,
        (Check(worlds.SENDS, Verdict.FALSE_REPORT),),
        "A cancelled send is unknown, and is never diverted by itself.",
        "3.7",
        "A send that ends without a result is reported as unknown; the machine learns that its attempt was abandoned.",
        (
            f"{_SENDS}test_a_cancelled_send_is_unknown_and_leaves_the_state_alone",
            f"{_CORE}test_a_cancelled_send_moves_nothing",
        ),
        ("a cancelled send is reported as refused",),
    ),
    Hazard(
        15,
        "poison at a queue's head",
        Naive.POISON_IS_TRIED_AGAIN,
        (Check(worlds.POISON, Verdict.STRANDED),),
        "What can never be delivered is dead-lettered at once, with its reason, and the pump goes on.",
        "7.4",
        "The pump knows which refusals are the message's fault.",
        (
            f"{_SYPHON}test_poison_is_dead_lettered_at_once_and_the_pump_goes_on",
            f"{_SYPHON}test_much_poison_does_not_hold_up_what_is_good",
            "tests/integration/test_redis_pair.py"
            "::test_poison_in_a_backlog_queue_is_dead_lettered_and_nothing_else_is_lost",
        ),
        ("poison stays in its queue",),
    ),
    Hazard(
        16,
        "a dead connection's write is applied late",
        Naive.ORDER_OF_ALL_COPIES,
        (Check(worlds.SESSIONS, Verdict.ORDER),),
        "The promise is about first copies; a late one is a marked second copy.",
        "8.1",
        "No send of a session leaves before the outcome of the previous one is reported; a late write of one "
        "is nothing but a second copy.",
        (
            f"{_HOURS}test_each_kind_of_fault_alone_breaks_nothing",
            f"{_HOURS}test_sessions_keep_their_order",
            f"{_ORDER}test_sends_of_one_session_arrive_in_the_order_of_their_calls",
            f"{_ORDER}test_a_batch_keeps_the_order_of_each_session",
        ),
        ("sends of one session go side by side", "messages of one session are moved in one operation"),
    ),
    Hazard(
        17,
        "two syphons on one queue",
        Naive.TWO_CONSUMERS,
        (Check(worlds.TWO_SYPHONS, Verdict.ORDER), Check(worlds.SYPHON_DIES, Verdict.ORDER)),
        "Where order is asked for, a queue has one consumer at a time.",
        "8.2",
        'With `ordering="session"` queues are made for one consumer at a time, and a pump that lost a lock releases '
        "all it holds; without it two syphons lose and double nothing.",
        (
            f"{_SYPHON}test_two_syphons_on_one_pair_lose_and_double_nothing",
            f"{_ORDER}test_two_syphons_keep_the_order",
            f"{_ORDER}test_nothing_passes_a_message_whose_lock_was_lost",
            "plugins/pairmq-redis/tests/test_conformance.py::TestReceive::test_one_consumer_at_a_time",
        ),
        (
            "backlog queues are made for several consumers at once",
            "what stands behind a lost lock goes on",
            "an ordered message is put at its queue's tail to make room",
        ),
    ),
    Hazard(
        18,
        "a send takes longer than its lock",
        Naive.LOCK_NOT_RENEWED,
        (Check(worlds.LOCKS, Verdict.DUPLICATE),),
        "Locks are renewed while their message is in flight, and a send's time limit stays under half of a lock.",
        "7.6",
        "The intake renews those that end soonest first, and a message whose lock has run out is not sent.",
        (
            f"{_SYPHON}test_a_long_outage_spends_no_delivery_count_and_loses_no_lock",
            f"{_SYPHON}test_a_message_whose_lock_has_run_out_is_not_sent",
            "tests/runner/test_syphon_in_doubt.py::test_the_first_locks_are_renewed_even_if_they_are_short",
        ),
        (
            "locks are not renewed",
            "the first locks are not renewed in time",
            "a message is sent under a lock that has run out",
        ),
    ),
    Hazard(
        19,
        "an outage raises delivery counts until the broker drops the message",
        Naive.OUTAGE_SPENDS_DELIVERIES,
        (Check(worlds.DELIVERIES, Verdict.DROPPED),),
        "What can't be delivered now is held under its lock; backlog queues have no limit, or a warning reports it.",
        "5.2, 7.3",
        "The pump holds what its gate does not let through; opening a pair names a queue's settings that differ.",
        (
            f"{_SYPHON}test_a_long_outage_spends_no_delivery_count_and_loses_no_lock",
            "tests/runner/test_backlog.py::test_existing_queues_are_left_as_they_are_with_a_warning",
            "plugins/pairmq-rabbitmq/tests/test_rabbitmq_admin.py::test_a_backlog_queue_loses_nothing",
        ),
        ("an outage spends delivery counts",),
    ),
    Hazard(
        20,
        "close in mid-drain",
        Naive.CLOSE_WAITS_FOR_DRAIN,
        (Check(worlds.CLOSE, Verdict.HANG), Check(worlds.CLOSE_ALONE, Verdict.HANG)),
        "A close waits for its grace period, then ends the rest: sends as unknown, messages released to their queue.",
        "9.1",
        "Every wait of a close has an end that no broker can move.",
        (
            "tests/runner/test_close.py::test_close_never_hangs",
            "tests/runner/test_close.py::test_sends_in_flight_get_the_grace_and_are_then_unknown",
            f"{_SYPHON}test_stopping_gives_held_messages_back",
        ),
        ("a close does not release its locked messages", "a close waits for the sends, however long"),
    ),
    Hazard(
        21,
        "the timer fires in mid-send",
        Naive.LATE_SUCCESS_REOPENS,
        (Check(worlds.SENDS, Verdict.STATE),),
        "A late success is still accepted, and the state stays.",
        "4.2, 4.6",
        "The interval's end starts a new epoch, so that the success of an attempt from before it is late.",
        (
            f"{_CORE}test_the_failover_interval_ends_with_a_send_in_flight",
            f"{_CORE}test_a_success_after_the_timer_fired_is_counted_and_the_state_stays",
            f"{_FAILOVER}test_a_late_success_is_accepted_and_leaves_the_state_alone",
        ),
        ("a late result moves the state",),
    ),
    Hazard(
        22,
        "several messages of a session in one operation, and one of them fails",
        Naive.REST_COUNTS_AS_DELIVERED,
        (Check(worlds.SESSION_BATCHES, Verdict.LOST),),
        "A later message of a session counts as delivered only when all earlier ones do.",
        "7.1, 8.1",
        "`PumpMachine.sent` ignores what is reported of a message behind one of its session that failed.",
        (
            "tests/core/test_pump.py::test_nothing_of_a_key_counts_as_delivered_behind_a_failure",
            "tests/core/test_pump.py::test_whatever_happens_nothing_is_lost_or_settled_twice_or_out_of_order",
        ),
        ("what is behind a failure in one operation counts as delivered",),
    ),
    Hazard(
        23,
        "a broker refuses one message of a session and stores the next",
        Naive.REST_IS_STORED,
        (Check(worlds.SESSION_BATCHES, Verdict.ORDER),),
        "Several messages of a session go in one operation only where none is stored behind one that failed.",
        "7.7, 8.1",
        "The pump hands them to `Sender.send_in_order` of a transport with `ordered_batches`, else one a session.",
        (
            "tests/core/test_pump.py::test_where_order_is_kept_one_message_a_key_is_sent_at_once",
            "plugins/pairmq-servicebus/tests/transport/test_outbox.py"
            "::test_nothing_of_a_chain_is_sent_behind_a_transfer_that_failed",
        ),
        (
            "messages of one session are moved in one operation",
            "a chain of Service Bus has several transfers under way",
        ),
    ),
    Hazard(
        24,
        "a message is read from a lane while the syphon moves it",
        Naive.LANE_WITHOUT_LOCKS,
        (Check(worlds.LANE, Verdict.DUPLICATE), Check(worlds.LANE_LOCKS, Verdict.DUPLICATE)),
        "Consumers and the syphon take each message of a lane under a lock, so that one of them has it.",
        "11.4",
        "A lane is a backlog queue under peek-lock for both; what a consumer can't complete is redelivered.",
        (
            "tests/runner/test_continuity.py::test_consumers_and_the_syphon_share_a_lane_without_a_second_copy",
            "tests/simulator/test_continuity_hours.py::test_consumers_with_continuity_lose_and_double_nothing",
        ),
        ("a lane's delivery is settled at the primary",),
    ),
    Hazard(
        25,
        "a consumer dies with a message that it has completed and not handled",
        Naive.COMPLETE_BEFORE_HANDLED,
        (Check(worlds.LANE_LOCKS, Verdict.LOST),),
        "A message leaves a lane when it was handled, and is delivered again where a lock was lost or a process died.",
        "11.5",
        "A receiver completes nothing by itself; what it holds and was not asked for is released after a while.",
        (
            "tests/runner/test_continuity.py::test_a_delivery_of_the_lane_is_the_message_that_was_sent_and_is_settled_there",
            "tests/runner/test_continuity.py::test_what_no_call_takes_is_given_to_others_after_a_while",
            "tests/simulator/test_continuity_hours.py::test_consumers_with_continuity_lose_and_double_nothing",
        ),
        (
            "a receiver that is left keeps what it holds at the other side",
            "what waits behind a message that is handled loses its lock",
        ),
    ),
    Hazard(
        26,
        "the syphon keeps a lane's messages from its consumers",
        Naive.LANE_HELD,
        (Check(worlds.LANE_LOCKS, Verdict.UNREAD),),
        "The syphon reads a lane only while the primary answers, and releases at once what it does not take.",
        "11.4, 11.5",
        "`LaneWatch` decides: after a patience without progress of consumers; what is stuck is released first.",
        (
            "tests/runner/test_lanes.py::test_the_syphon_releases_a_lanes_messages_when_the_destination_fails_under_it",
            "tests/runner/test_lanes.py::test_the_syphon_keeps_no_message_of_a_lane_while_the_primary_is_unavailable",
            "tests/core/test_lanes.py::test_the_syphon_releases_what_can_not_be_delivered_before_anything_else",
        ),
        (
            "a syphon holds messages of a lane while their destination is unavailable",
            "the syphon reads a lane while the primary takes no messages",
            "the syphon reads a lane without patience",
        ),
    ),
    Hazard(
        27,
        "an entity is called drained over its lane",
        Naive.LANE_NOT_COUNTED,
        (Check(worlds.LANE, Verdict.FALSE_DRAINED), Check(worlds.LANE_LOCKS, Verdict.FALSE_DRAINED)),
        "An entity with continuity is DRAINING until its lane was seen empty, by consumers or the syphon.",
        "4.5, 11.4",
        "`drained_since` asks for a count of the entity's own lane, taken after those of the shared queues.",
        (
            "tests/core/test_lanes.py::test_an_entity_is_drained_when_its_lane_is_and_no_count_of_it_has_failed",
            "tests/runner/test_lanes.py::test_the_syphon_moves_a_lane_without_consumers_after_its_patience",
            "tests/runner/test_lanes.py::test_an_entity_does_not_wait_for_anothers_lane",
        ),
        ("an entity is called drained while its lane holds messages",),
    ),
    Hazard(
        28,
        "a message is postponed, and its copy is not stored",
        Naive.FAILED_COPY_COUNTS,
        (Check(worlds.TAIL, Verdict.LOST),),
        "A copy at the tail is confirmed before the message that it replaces is completed, and one in doubt is marked.",
        "7.3",
        "`PumpMachine.copied` settles what has a confirmed copy, and puts the rest back at the head of its line.",
        (
            f"{_SYPHON}test_postponing_does_not_multiply_the_backlog",
            f"{_SYPHON}test_a_copy_made_by_postponing_says_that_it_may_be_one",
            "tests/core/test_pump.py::test_whatever_happens_nothing_is_lost_or_settled_twice_or_out_of_order",
        ),
        ("a postponed message is forgotten", "what could not be postponed is forgotten"),
    ),
)
