"""The tables once more, in SQL and by another engine: written from the documents, not from the Spark code.

One scan reads the journal into a narrow table, from which all else is made. Left out are: unread files and unfinished
parts, what was dead-lettered with a destination that could not be read, percentiles by histogram, and the peaks of
outages.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import duckdb

_MESSAGES = ("SendCompleted", "AttemptFailed", "MessageMoved", "MessageDeadLettered", "MessageDelivered")
_COUNTED = "OperationsCounted"
_KINDS = (
    *_MESSAGES,
    *(_COUNTED, "StateChanged", "RotationChanged", "DestinationChanged", "SyphonFailed", "BacklogQueueChecked"),
    *(
        "PingCompleted",
        "ReceiverChanged",
        "PairOpened",
        "PairEnded",
        "JournalOpened",
        "EventsDropped",
        "JournalClosed",
        "Warned",
    ),
)
_OUTCOMES = ("accepted-primary", "accepted-backlog", "refused", "unknown")
_PLAIN = """
  process, seq, pair, entity, message_id, message_key, backlog_queue, attempts, elapsed, maybe_duplicate, sender,
  session_id, time_to_live, scheduled_enqueue_at, queue, waited, redelivered, completed, maybe_applied, reason,
  dead_letter, delivery_count, subscription, received_at, previous, current, cause, lasted, in_use, side, sends,
  receives, pings, host, pid, sample_healthy, "count", since, created, receiver, failure_kind, ok, clock, seconds,
  "open"
"""

# As one number: brokers write ``17``, or ``1700000000000-3``.
_POSITION = """(TRY_CAST(split_part(sequence_number, '-', 1) AS HUGEINT) * 1000000
  + coalesce(TRY_CAST(nullif(split_part(sequence_number, '-', 2), '') AS BIGINT), 0))"""

_JOURNAL = f"""
CREATE TEMP TABLE j AS SELECT {_PLAIN}, "at" AS ts, kind::kind AS kind, outcome::outcome AS outcome,
  settlement = 'completed' AS settled, settlement = 'dead-lettered' AS buried, error IS NOT NULL AS failed,
  entity_kind = 'topic' AS of_topic, hash(pair, entity) AS place, {_POSITION} AS position,
  options ->> '$.ordering' AS ordering, options -> '$.continuity' AS continuity
FROM read_parquet(?, union_by_name = true) WHERE "at" BETWEEN 1577836800 AND 4102444800
"""
_ONCE = "QUALIFY row_number() OVER (PARTITION BY process, seq) = 1"

_MADE = (
    "CREATE TEMP TABLE places AS SELECT place, any_value(pair) AS pair, any_value(entity) AS entity, "
    "coalesce(bool_or(of_topic), false) AS of_topic FROM j WHERE kind <= 'MessageDelivered'::kind GROUP BY place",
    # One row for each message, by its hash.
    """
CREATE TEMP TABLE m AS SELECT place, message_key, any_value(message_id) AS message_id,
  count(*) FILTER (outcome = 'accepted-primary') AS at_primary,
  count(*) FILTER (outcome = 'accepted-backlog') AS in_backlog,
  count(*) FILTER (outcome = 'refused') AS refused,
  count(*) FILTER (outcome = 'unknown') AS unsure,
  count(*) FILTER (kind = 'AttemptFailed') AS tries_failed,
  count(*) FILTER (kind = 'AttemptFailed' AND maybe_applied) AS doubtful,
  count(*) FILTER (kind = 'SendCompleted' AND maybe_duplicate) AS marked,
  count(*) FILTER (kind = 'MessageMoved') AS moved,
  count(*) FILTER (kind = 'MessageMoved' AND redelivered) AS moved_again,
  moved_again + count(*) FILTER (kind = 'MessageMoved' AND NOT completed)
    AS shaky_moves,
  count(*) FILTER (kind = 'MessageMoved' AND maybe_duplicate) AS marked_moves,
  count(*) FILTER (kind = 'MessageDeadLettered') AS aside,
  any_value(reason) FILTER (kind = 'MessageDeadLettered') AS reason,
  count(*) FILTER (kind = 'MessageDelivered' AND NOT dead_letter) AS seen,
  count(*) FILTER (kind = 'MessageDelivered' AND NOT dead_letter AND settled) AS done,
  count(*) FILTER (kind = 'MessageDelivered' AND NOT dead_letter AND settled AND subscription IS NOT NULL) AS copies,
  count(*) FILTER (kind = 'MessageDelivered' AND (dead_letter OR buried)) AS buried,
  count(*) FILTER (delivery_count > 1) + count(*) FILTER (settled AND failed) AS shaky_deliveries,
  max(ts) FILTER (outcome = 'accepted-backlog') AS diverted_at,
  min(ts) FILTER (outcome = 'accepted-backlog') AS first_diverted, max(ts) FILTER (kind = 'MessageMoved') AS last_moved,
  min(ts) FILTER (kind = 'SendCompleted') AS first_sent,
  min(ts) FILTER (outcome <= 'accepted-backlog'::outcome) AS receipt,
  min(ts - elapsed) FILTER (outcome <= 'accepted-backlog'::outcome) AS call,
  greatest(max(ts) FILTER (outcome = 'accepted-primary' OR kind = 'MessageMoved'), max(scheduled_enqueue_at)
    FILTER (outcome <= 'accepted-backlog'::outcome)) AS latest,
  max(scheduled_enqueue_at) FILTER (outcome <= 'accepted-backlog'::outcome) AS due,
  if(max(ts) FILTER (outcome = 'accepted-primary' OR kind = 'MessageMoved') IS NULL, NULL, latest) AS home,
  min(ts) FILTER (kind = 'MessageDelivered' AND NOT dead_letter) AS first_settled,
  max(ts) FILTER (kind = 'MessageDelivered' AND NOT dead_letter) AS last_settled,
  min(position) FILTER (kind = 'MessageDelivered' AND NOT dead_letter) AS position,
  min(coalesce(receiver, process)) FILTER (first_delivery) AS got_by,
  max(coalesce(receiver, process)) FILTER (first_delivery) AS also_by,
  min(coalesce(received_at, ts)) FILTER (first_delivery) AS got_at,
  -- Without the broker's positions only what one receiver got first has an order.
  CASE WHEN count(position) FILTER (kind = 'MessageDelivered' AND NOT dead_letter) > 0 THEN ''
    WHEN got_by = also_by THEN got_by END AS seen_by,
  any_value(process) FILTER (kind = 'SendCompleted') AS sent_by, count(outcome) AS times_sent,
  max(time_to_live) AS lives, min(coalesce(session_id, sender)) AS lane, any_value(backlog_queue) AS queue
FROM (SELECT *, kind = 'MessageDelivered' AND NOT dead_letter AND delivery_count = 1 AND position IS NULL
    AS first_delivery FROM j)
WHERE kind <= 'MessageDelivered'::kind AND message_id <> '' GROUP BY place, message_key
""",
    """
CREATE TEMP TABLE second AS SELECT place, message_key, sum(n - 1) AS surplus FROM (
  SELECT place, message_key, subscription, count(*) AS n FROM j
  WHERE subscription IS NOT NULL AND settled AND NOT dead_letter GROUP BY ALL)
WHERE n > 1 GROUP BY ALL
""",
    """
CREATE TEMP TABLE p AS SELECT process, count(*) AS rows, max(seq) + 1 - count(*) AS missing,
  max(clock) - min(clock) AS set_by,
  min(seq) AS first_seq, min(ts) AS first_at, max(ts) AS last_at, any_value(host) AS host, any_value(pid) AS pid,
  sum("count") AS dropped, min(sample_healthy) AS kept, bool_or(kind = 'JournalClosed') AS closed
FROM j GROUP BY process
""",
    # How wrong each process's clock was seen to be: by its readings, else by two signs in its rows.
    """
CREATE TEMP TABLE wrong AS WITH
minutes AS (SELECT process, floor(ts / 60) AS minute, min(seq) AS least, max(seq) AS most, min(ts) AS began,
    max(ts) AS ended, count(*) + lag(count(*), 1, 0) OVER (PARTITION BY process ORDER BY floor(ts / 60)) AS both
  FROM j GROUP BY process, floor(ts / 60)),
-- Rows of an earlier minute that came after some of this one: many, or from more than a minute before.
back AS (SELECT b.process, b.minute, b.ended FROM minutes b JOIN minutes a ON a.process = b.process
    AND a.minute < b.minute AND a.most > b.least GROUP BY b.process, b.minute, b.ended
  HAVING bool_or(a.minute < b.minute - 1) OR (max(a.most) - min(b.least) + 1 >= 8
    AND (max(a.most) - min(b.least) + 1) * 120 > min(b.both))),
-- Where everything before came before everything after.
edges AS (SELECT process, minute, began FROM minutes
  QUALIFY coalesce(max(most) OVER
      (PARTITION BY process ORDER BY minute ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
    < min(least) OVER (PARTITION BY process ORDER BY minute ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING), true)),
by_rows AS (SELECT process, max(back.ended - (SELECT arg_max(e.began, e.minute) FROM edges e
    WHERE e.process = back.process AND e.minute <= back.minute)) AS seconds FROM back GROUP BY process),
-- Between two counts of a pair the wall clock should have gone on by the seconds that the later one has.
ticks AS (SELECT *, if(kind = 'OperationsCounted' AND lag(kind) OVER w = 'OperationsCounted',
    ts - lag(ts) OVER w - seconds, 0) AS jump, sum(CASE kind WHEN 'PairOpened' THEN 1 WHEN 'PairEnded' THEN -1
    ELSE 0 END) OVER w AS at_once
  FROM j WHERE kind IN ('PairOpened', 'PairEnded') OR (kind = 'OperationsCounted' AND side = 'primary')
  WINDOW w AS (PARTITION BY process, pair ORDER BY seq)),
jumps AS (SELECT *, sum(jump) OVER (PARTITION BY process, pair ORDER BY seq) AS jumped FROM ticks),
by_count AS (SELECT process, max(spread) AS seconds FROM (SELECT process, max(jumped) - min(jumped) AS spread FROM jumps
  GROUP BY process, pair HAVING max(at_once) <= 1) GROUP BY process)
SELECT process, CASE WHEN set_by >= 0.05 THEN set_by WHEN set_by IS NOT NULL OR dropped > 0 THEN 0
  WHEN by_rows.seconds > 1 OR (missing = 0 AND by_count.seconds > 1)
    THEN if(missing > 0, by_rows.seconds, greatest(by_rows.seconds, by_count.seconds)) ELSE 0 END AS seconds
FROM p LEFT JOIN by_rows USING (process) LEFT JOIN by_count USING (process)
""",
    "CREATE TEMP TABLE worst AS SELECT place, max(wrong.seconds) AS seconds FROM j JOIN wrong USING (process) "
    "GROUP BY place",
    """
CREATE TEMP TABLE ended AS SELECT *, max(last_at - seconds) OVER () AS finish,
  max(last_at) OVER (PARTITION BY coalesce(host, nullif(regexp_extract(process,
    '^(.+)-[0-9]+-[0-9]{{8}}T[0-9]{{6}}Z-', 1), ''), process)) AS goes_on,
  CASE WHEN closed THEN 'closed' WHEN goes_on - last_at > {patience} OR finish - goes_on > 86400 THEN 'killed'
    ELSE 'open' END AS ended FROM p JOIN (SELECT process, seconds FROM wrong) USING (process)
""",
    """
CREATE TEMP TABLE gaps AS
  SELECT last_at AS began, if(ended = 'killed', last_at + 120, finish) AS ended FROM ended WHERE ended <> 'closed'
  UNION ALL
  -- Within one minute a hole may be anywhere in it.
  SELECT if(minute = next_minute, least_of, most_of),
    if(minute = next_minute, most_of, greatest(most_of, next_least))
  FROM (SELECT *, lead(seq) OVER w AS next_seq, lead(minute) OVER w AS next_minute, lead(least_of) OVER w AS next_least
    FROM (SELECT process, seq, floor(ts / 60) AS minute, min(ts) OVER m AS least_of, max(ts) OVER m AS most_of FROM j
      WHERE process IN (SELECT process FROM p WHERE missing > 0) WINDOW m AS (PARTITION BY process, floor(ts / 60)))
    WINDOW w AS (PARTITION BY process ORDER BY seq))
  WHERE next_seq > seq + 1
  UNION ALL SELECT least(coalesce(epoch(try_strptime(regexp_extract(process, '-([0-9]{{8}}T[0-9]{{6}})Z-', 1),
    '%Y%m%dT%H%M%S')), (SELECT min(first_at) FROM p)), first_at), first_at FROM p WHERE first_seq > 0
  UNION ALL SELECT since, ts FROM j WHERE kind = 'EventsDropped'
""",
    # No instant is better than the worst clock.
    """
UPDATE gaps SET began = began - 2 * w.most, ended = ended + 2 * w.most
FROM (SELECT max(seconds) AS most, min(first_at) AS since, max(last_at) AS until FROM ended WHERE seconds > 0) w
WHERE began - 2 * w.most <= w.until AND greatest(began, ended) + 2 * w.most >= w.since
""",
    """
CREATE TEMP TABLE trust AS SELECT m.place, message_key, worst.seconds
  + if(times_sent + moved > 1, worst.seconds, coalesce(wrong.seconds, 0)) AS doubt
FROM m JOIN worst USING (place) LEFT JOIN wrong ON wrong.process = m.sent_by WHERE worst.seconds > 0
""",
    # When a backlog queue was seen empty, or made anew: what was diverted before has left it.
    """
CREATE TEMP TABLE empty AS SELECT *, (SELECT max(ended) FROM gaps WHERE began <= looked + {patience} + 1) AS hole FROM (
  SELECT place, NULL::TEXT AS pair, NULL::TEXT AS queue, ts - lasted AS since, ts AS looked FROM j
    WHERE cause = 'backlog drained'
  UNION ALL SELECT NULL, pair, queue, max(ts), max(ts) FROM j WHERE kind = 'BacklogQueueChecked' AND created
  GROUP BY pair, queue)
""",
    """
CREATE TEMP TABLE away AS SELECT m.place, message_key,
  bool_or((e.hole IS NULL OR e.hole < m.diverted_at) AND e.since > m.diverted_at + 1 + doubt
    AND e.looked + {patience} + doubt <= (SELECT max(finish) FROM ended)) AS surely
FROM (SELECT m.*, p.pair, coalesce(trust.doubt, 0) AS doubt FROM m JOIN places p USING (place)
    LEFT JOIN trust ON trust.place = m.place AND trust.message_key = m.message_key
    WHERE home IS NULL AND in_backlog > 0) m
  JOIN empty e ON (e.place = m.place OR (e.pair = m.pair AND e.queue = m.queue))
  AND e.since > m.diverted_at + 1 - doubt AND e.looked + {patience} - doubt <= (SELECT max(finish) FROM ended)
GROUP BY ALL
""",
    """
CREATE TEMP TABLE blind AS WITH
minutes AS (
  SELECT place, floor(coalesce(home, last_settled, first_sent) / 60) AS minute,
    min(first_settled) FILTER (home IS NOT NULL) AS first_settled,
    max(last_settled) FILTER (home IS NOT NULL) AS last_settled,
    floor((min(least(call, first_sent, first_settled, home)) - {patience}) / 60) AS since,
    floor((max(greatest(first_sent, last_settled)) + {patience}) / 60) AS until
  FROM m GROUP BY ALL),
known AS (
  SELECT *, floor((coalesce(min(first_settled) OVER (PARTITION BY place ORDER BY minute
      RANGE BETWEEN floor({patience} / 60) + 2 FOLLOWING AND UNBOUNDED FOLLOWING),
    max(last_settled) OVER (PARTITION BY place)) + {patience}) / 60) AS settled_by
  FROM minutes)
SELECT place, minute,
  EXISTS (FROM gaps g WHERE floor(g.began / 60) <= settled_by AND floor((g.ended + 1) / 60) >= minute) AS unseen,
  EXISTS (FROM gaps g WHERE floor(g.began / 60) <= until AND floor((g.ended + 1) / 60) >= since) AS untold
FROM known
""",
    """
CREATE TEMP TABLE sight AS WITH
s AS (SELECT place, count(*) AS messages, min(home) FILTER (seen > 0) AS first,
  max(least(home, last_settled)) FILTER (seen > 0) AS last FROM m GROUP BY place)
SELECT s.*, first IS NULL AND NOT of_topic AND count(first) OVER (PARTITION BY pair) > 0 AS absent,
  place IN (SELECT DISTINCT place FROM j WHERE kind = 'MessageDelivered' AND process IN
    (SELECT process FROM p WHERE missing > 0 OR dropped > 0)) AS lacking,
  place NOT IN (SELECT DISTINCT place FROM j WHERE kind = 'MessageDelivered') AS unread
FROM s JOIN places USING (place)
""",
    # What met a pump that had to stop: it may be overtaken in its own backlog queue, too.
    """
CREATE TEMP TABLE troubled AS
WITH struck AS (SELECT pair, entity, queue, kind, ts FROM j WHERE kind IN ('DestinationChanged', 'SyphonFailed'))
SELECT place, message_key FROM m JOIN places USING (place)
WHERE at_primary = 0 AND in_backlog > 0 AND (moved = 0 OR moved_again > 0 OR EXISTS (FROM struck s
  WHERE s.pair = places.pair AND s.ts BETWEEN first_diverted - 1 AND last_moved + 1
    AND ((s.kind = 'DestinationChanged' AND s.entity = places.entity)
      OR (s.kind = 'SyphonFailed' AND s.queue = m.queue))))
""",
    "CREATE TEMP TABLE late AS {late}",
)

LATE = """
  SELECT a.place, a.message_key, if(bool_or(a.at_primary > 0
    OR (b.at_primary = 0 AND a.queue = b.queue AND t.place IS NULL)
    OR a.place IN (SELECT hash(j.pair, p.entity) FROM j JOIN places p USING (pair) WHERE ordering = 'session')),
    'fault', 'designed') AS late, max(b.call - a.receipt) AS late_by
  FROM m a JOIN m b ON a.place = b.place AND a.lane = b.lane AND a.seen_by = b.seen_by AND b.call > a.receipt
    AND (b.position < a.position OR (a.position IS NULL AND b.got_at < a.got_at)) AND a.due IS NULL AND b.due IS NULL
    LEFT JOIN troubled t ON t.place = a.place AND t.message_key = a.message_key
  GROUP BY ALL
"""
"""The definition of what is late, word for word: each message with each. Not for more than some thousand."""

LATE_AT_ONCE = """
  SELECT place, message_key, 'fault' AS late, max(late_by) AS late_by FROM (
  SELECT place, message_key, ahead - receipt AS late_by FROM (
    SELECT *, max(call) OVER (PARTITION BY place, lane ORDER BY position
      ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS ahead
    FROM m WHERE seen > 0 AND receipt IS NOT NULL AND position IS NOT NULL AND due IS NULL)
  WHERE ahead > receipt AND (at_primary > 0
    OR place IN (SELECT hash(j.pair, p.entity) FROM j JOIN places p USING (pair) WHERE ordering = 'session'))
  UNION SELECT place, message_key, ahead - receipt FROM (
    SELECT *, max(call) OVER (PARTITION BY place, lane, queue ORDER BY position
      ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS ahead
    FROM m ANTI JOIN troubled USING (place, message_key)
    WHERE seen > 0 AND at_primary = 0 AND receipt IS NOT NULL AND position IS NOT NULL AND due IS NULL)
  WHERE ahead > receipt) GROUP BY ALL
"""
"""The faults among them by a window, for the benchmark, whose broker reports positions."""

VERDICTS = """
WITH facts AS (
  SELECT m.*, pair, entity, of_topic, first, last, coalesce(l.late = 'fault', false) AS behind, absent, lacking,
    queue LIKE '%/x-pairmq-lane/%' AND (lacking OR unread) AS taken,
    coalesce(trust.doubt, 0) AS doubt,
    coalesce(trust.doubt > 0 AND (late_by <= trust.doubt OR position IS NULL), false) AS excused,
    l.late AS was_late, a.place IS NOT NULL AS emptied, surely,
    coalesce(surplus, 0) + greatest(done - copies - 1, 0) AS surplus,
    coalesce(unseen, false) AS blind, (home IS NULL AND in_backlog > 0) AS missed,
    missed OR coalesce(untold, false) OR coalesce(least < 1 AND
      if(m.message_key < 0, 18446744073709551616.0, 0.0) + m.message_key >= least * 18446744073709551616.0 - 4096,
      false) AS untold,
    (SELECT max(finish) FROM ended) AS finish
  FROM m JOIN places USING (place) JOIN sight USING (place) CROSS JOIN (SELECT min(kept) AS least FROM p)
    LEFT JOIN second s ON s.place = m.place AND s.message_key = m.message_key
    LEFT JOIN late l ON l.place = m.place AND l.message_key = m.message_key
    LEFT JOIN away a ON a.place = m.place AND a.message_key = m.message_key
    LEFT JOIN trust ON trust.place = m.place AND trust.message_key = m.message_key
    LEFT JOIN blind b ON b.place = m.place AND b.minute = floor(coalesce(m.home, m.last_settled, m.first_sent) / 60))
SELECT * EXCLUDE (place, first, last, finish, emptied, surely, of_topic, missed, latest, behind, was_late, absent,
    lacking, taken, excused, sent_by, times_sent),
  if(behind AND (untold OR excused), 'unproven', was_late) AS late, CASE
  WHEN at_primary + in_backlog + unsure = 0 AND refused > 0 THEN
    if(seen + buried + moved = 0, 'refused', if(untold, 'not journalled', 'phantom'))
  WHEN at_primary + in_backlog = 0 AND unsure + tries_failed > 0 THEN
    if(seen + buried > 0, 'unknown, delivered', 'unknown')
  WHEN at_primary + in_backlog = 0 THEN if(aside + buried > 0 AND done = 0, 'dead-lettered', 'not journalled')
  WHEN surplus > 0 THEN if(marked_moves = 0 AND surplus > greatest(at_primary + in_backlog - 1, 0) + unsure
    + greatest(doubtful, marked) + shaky_moves + shaky_deliveries,
    if(untold, 'duplicated, unproven', 'duplicated, unexplained'), 'duplicated, explained')
  WHEN behind AND seen > 0 AND NOT untold AND NOT excused THEN 'out of order'
  WHEN done > 0 THEN 'delivered'
  WHEN buried > 0 THEN 'dead-lettered'
  WHEN seen > 0 THEN 'unsettled'
  WHEN home IS NULL AND aside > 0 THEN if(reason = 'TTLExpiredException', 'expired', 'dead-lettered')
  WHEN home IS NULL THEN if(emptied, if(surely AND NOT coalesce(taken, false), 'lost', 'unproven'), 'diverted')
  WHEN of_topic THEN 'delivery not observed'
  WHEN first IS NULL OR home + doubt < first THEN if(absent OR (lacking AND (blind OR
    (doubt > 0 AND home - doubt + {patience} < last))), 'unproven', 'delivery not observed')
  WHEN home + doubt + lives <= finish THEN 'expired'
  WHEN home - doubt + {patience} < last THEN if(blind OR home + doubt + {patience} >= last OR home - doubt < first
    OR coalesce(home - doubt + lives <= finish, false), 'unproven', 'lost')
  ELSE 'in flight' END AS verdict
FROM facts
"""

EPISODES = """
WITH e AS (SELECT *, kind = 'StateChanged' AS changed, coalesce(changed AND previous IN ('healthy', 'draining')
        AND current IN ('failing', 'failed-over'), false) AS starts
      FROM j WHERE kind IN ('StateChanged', 'SendCompleted', 'PingCompleted', 'AttemptFailed')),
n AS (SELECT *, sum(starts::INT) OVER w AS number, last_value(if(changed, current, NULL) IGNORE NULLS) OVER w AS state
      FROM e WINDOW w AS (PARTITION BY process, pair, entity ORDER BY seq)),
o AS (SELECT process, pair, entity, number, min(ts) FILTER (starts) AS started_at, max(cause) FILTER (starts) AS cause,
        arg_min(failure_kind, seq) FILTER (kind = 'AttemptFailed' AND queue IS NULL) AS failure_kind,
        min(ts) FILTER (changed AND current = 'failed-over') AS failed_over_at,
        min(ts) FILTER (changed AND current IN ('healthy', 'draining')) AS up_at,
        min(ts) FILTER (changed AND current = 'healthy') AS ended_at,
        count(*) FILTER (outcome = 'accepted-backlog') AS diverted, count(*) FILTER (outcome = 'refused') AS refused,
        count(*) FILTER (outcome = 'unknown') AS "unknown", count(*) FILTER (kind = 'PingCompleted') AS pings,
        count(*) FILTER (kind = 'PingCompleted' AND ok) AS pings_good
      FROM n WHERE number > 0 AND (changed OR state <> 'healthy') GROUP BY ALL),
closed AS (SELECT process, pair, max(ts) AS closed_at FROM j WHERE kind = 'PairEnded' GROUP BY ALL)
SELECT o.*, CASE WHEN ended_at IS NOT NULL THEN NULL
  WHEN lead(number) OVER (PARTITION BY process, pair, entity ORDER BY number) IS NOT NULL THEN 'failed again'
  WHEN closed_at >= started_at THEN 'pair closed' WHEN ended.ended = 'killed' THEN 'process killed'
  ELSE 'journal ends' END AS open_because
FROM o JOIN ended USING (process) LEFT JOIN closed USING (process, pair)
"""

AVAILABILITY = """
SELECT pair, entity, floor(ts / 3600) * 3600 AS hour, count(*) AS attempted,
  count(*) FILTER (outcome = 'accepted-primary') AS accepted_primary,
  count(*) FILTER (outcome = 'accepted-backlog') AS accepted_backlog,
  count(*) FILTER (outcome = 'refused') AS refused, count(*) FILTER (outcome = 'unknown') AS unknown,
  quantile_disc(elapsed, 0.5) FILTER (outcome <= 'accepted-backlog'::outcome) AS p50,
  quantile_disc(elapsed, 0.99) FILTER (outcome <= 'accepted-backlog'::outcome) AS p99,
  max(elapsed) FILTER (outcome <= 'accepted-backlog'::outcome) AS most
FROM j WHERE kind = 'SendCompleted' GROUP BY ALL
"""

CONSUMERS = """
WITH named AS (SELECT pair, unnest(from_json(continuity, '["VARCHAR"]')) AS pattern FROM j WHERE kind = 'PairOpened'),
r AS (SELECT * FROM j WHERE kind IN ('MessageDelivered', 'ReceiverChanged') AND EXISTS (FROM j o
    WHERE o.pair = j.pair AND o.entity = j.entity AND (o.kind = 'ReceiverChanged' OR o.side = 'secondary'
      AND o.kind = 'MessageDelivered' OR EXISTS (FROM named n WHERE n.pair = o.pair AND o.entity GLOB n.pattern)))),
program AS (SELECT DISTINCT process, pair, entity, first_at, last_at FROM r JOIN p USING (process)),
instant AS (SELECT DISTINCT pair, entity, unnest([first_at, last_at]) AS ts FROM program
  UNION SELECT pair, entity, ts FROM r WHERE kind = 'ReceiverChanged'
  UNION SELECT program.pair, program.entity, ts FROM program JOIN j USING (process, pair) WHERE kind = 'PairEnded'
  -- No time lies in two hours.
  UNION SELECT pair, entity, unnest(hours) * 3600 FROM (SELECT pair, entity,
    range(ceil(min(first_at) / 3600)::BIGINT, ceil(max(last_at) / 3600)::BIGINT) AS hours FROM program GROUP BY ALL)),
part AS (SELECT *, lead(ts) OVER (PARTITION BY pair, entity ORDER BY ts) AS until FROM instant),
-- What each program has seen by then, of each broker since its pair last ended.
seen AS (SELECT part.pair, part.entity, part.ts, part.until, program.process,
    coalesce(arg_max(r."open", r.seq) FILTER (r.side = 'primary'), true)
      OR coalesce(arg_max(r."open", r.seq) FILTER (r.side = 'secondary'), true) AS reads
  FROM part JOIN program ON program.pair = part.pair AND program.entity = part.entity
    AND first_at <= part.ts AND part.ts < last_at
  LEFT JOIN r ON r.kind = 'ReceiverChanged' AND r.process = program.process AND r.pair = part.pair
    AND r.entity = part.entity AND r.ts <= part.ts AND NOT EXISTS (FROM j e WHERE e.kind = 'PairEnded'
      AND e.process = r.process AND e.pair = r.pair AND e.seq > r.seq AND e.ts <= part.ts)
  GROUP BY ALL),
time AS (SELECT pair, entity, ts, until, bool_or(reads) AS reads FROM seen GROUP BY ALL),
run AS (SELECT *, sum(if(reads, NULL, until - ts)) OVER (PARTITION BY pair, entity, number) AS whole FROM (
  SELECT *, count(*) FILTER (reads OR before IS DISTINCT FROM ts) OVER (PARTITION BY pair, entity ORDER BY ts) AS number
  FROM (SELECT *, lag(until) OVER (PARTITION BY pair, entity ORDER BY ts) AS before FROM time))),
counted AS (SELECT pair, entity, floor(ts / 3600) * 3600 AS hour,
    count(*) FILTER (side IS DISTINCT FROM 'secondary') AS from_primary,
    count(*) FILTER (side = 'secondary') AS from_secondary FROM r WHERE kind = 'MessageDelivered' GROUP BY ALL),
timed AS (SELECT pair, entity, floor(ts / 3600) * 3600 AS hour, sum(until - ts) AS watched,
    coalesce(sum(until - ts) FILTER (NOT reads), 0) AS unread,
    coalesce(max(whole) FILTER (NOT reads), 0) AS longest_unread FROM run GROUP BY ALL)
SELECT pair, entity, hour, coalesce(from_primary, 0) AS from_primary, coalesce(from_secondary, 0) AS from_secondary,
  coalesce(watched, 0) AS watched, coalesce(unread, 0) AS unread, coalesce(longest_unread, 0) AS longest_unread
FROM counted FULL JOIN timed USING (pair, entity, hour)
"""

BACKLOG = """
WITH f AS (SELECT coalesce(backlog_queue, queue) AS queue, message_key,
        min(ts) FILTER (outcome = 'accepted-backlog') AS came,
        max(ts) FILTER (kind IN ('MessageMoved', 'MessageDeadLettered')) AS gone
      FROM j WHERE outcome = 'accepted-backlog' OR kind IN ('MessageMoved', 'MessageDeadLettered') GROUP BY ALL),
q AS (SELECT DISTINCT queue FROM f),
e AS (SELECT floor(min(came) / 60) AS first, (SELECT floor(max(finish) / 60) FROM ended) AS last FROM f),
t AS (SELECT unnest(range(first::BIGINT, last::BIGINT + 1)) AS minute FROM e),
c AS (SELECT queue, floor(came / 60)::BIGINT AS came, floor(gone / 60)::BIGINT AS gone, count(*) AS n FROM f
      WHERE came IS NOT NULL GROUP BY ALL),
d AS (SELECT q.queue, t.minute * 60 AS minute, sum(c.n)::BIGINT AS depth, min(c.came) * 60 AS oldest
      FROM q CROSS JOIN t JOIN c ON c.queue = q.queue AND c.came <= t.minute
        AND (c.gone IS NULL OR c.gone > t.minute) GROUP BY ALL)
SELECT queue, minute, depth, minute + 60 - oldest AS oldest_age FROM d
"""

SYPHON = """
SELECT pair, entity, floor(ts / 3600) * 3600 AS hour,
  count(*) FILTER (kind = 'MessageMoved') AS moved,
  count(*) FILTER (kind = 'MessageDeadLettered') AS dead_lettered,
  quantile_disc(waited, 0.95) AS p95, max(waited) AS most
FROM j WHERE kind IN ('MessageMoved', 'MessageDeadLettered') GROUP BY ALL
"""

COST = """
WITH counting AS (SELECT DISTINCT process FROM j WHERE kind = 'OperationsCounted'),
c AS (SELECT side, floor(ts / 86400) * 86400 AS day, sends + receives + pings AS operations
      FROM j WHERE kind = 'OperationsCounted'),
other AS (
  SELECT floor(ts / 86400) * 86400 AS day,
    count(*) FILTER (kind IN ('MessageMoved', 'PingCompleted') OR outcome = 'accepted-primary'
      OR (kind = 'MessageDelivered' AND side IS DISTINCT FROM 'secondary')
      OR (kind = 'AttemptFailed' AND queue IS NULL)) AS at_primary,
    count(*) FILTER (kind IN ('MessageMoved', 'MessageDeadLettered') OR outcome = 'accepted-backlog'
      OR (kind = 'MessageDelivered' AND side = 'secondary')
      OR (kind = 'AttemptFailed' AND queue IS NOT NULL)) AS at_secondary,
    count(*) FILTER (kind = 'MessageMoved') AS again
  FROM j ANTI JOIN counting USING (process) GROUP BY ALL),
guess AS (SELECT 'primary' AS side, day, at_primary AS operations FROM other
  UNION ALL SELECT 'secondary', day, at_secondary FROM other)
SELECT side, day, sum(operations)::BIGINT AS operations FROM (FROM c UNION ALL FROM guess) GROUP BY ALL
HAVING sum(operations) > 0
"""

ROTATION = """
WITH r AS (SELECT process, queue, ts, in_use, lead(ts) OVER (PARTITION BY process, queue ORDER BY seq) AS back
      FROM j WHERE kind = 'RotationChanged')
SELECT process, queue, ts AS left_at, back - ts AS out_of_use FROM r WHERE NOT in_use
"""

ORDER = """
WITH s AS (SELECT place, message_key, any_value(session_id) AS session, any_value(sender) AS sender FROM j
  WHERE outcome <= 'accepted-backlog'::outcome GROUP BY ALL)
SELECT pair, entity, if(session IS NULL, 'sender:' || sender, 'session:' || session) AS order_key,
  count(*) AS delivered, count(*) FILTER (l.late = 'fault') AS out_of_order
FROM s JOIN m USING (place, message_key) JOIN places USING (place)
  LEFT JOIN late l ON l.place = m.place AND l.message_key = m.message_key
WHERE seen > 0 GROUP BY ALL
"""

OBSERVATION = """
WITH d AS (SELECT place, max(ts - lasted) AS drained_from FROM j WHERE cause = 'backlog drained' GROUP BY ALL)
SELECT pair, entity, messages, first AS observed_from, last AS observed_until, drained_from
FROM sight JOIN places USING (place) LEFT JOIN d USING (place)
"""

PROCESSES = """
SELECT process, rows, missing, first_at, last_at, host, pid, dropped, ended, seconds AS clock_error FROM ended
"""

TABLES = (
    *(VERDICTS, EPISODES, AVAILABILITY, CONSUMERS, BACKLOG, SYPHON),
    *(COST, ROTATION, ORDER, OBSERVATION, PROCESSES),
)


def opened(
    files: Sequence[str], *, patience: float, at_once: bool = False, config: dict[str, Any] | None = None
) -> duckdb.DuckDBPyConnection:
    """Read a journal, and make what every table is made of.

    Args:
        files: the segments.
        patience: seconds by which a message may be overtaken before it counts as lost.
        at_once: for large journals, in whose files no row is twice: find what is late by a window.
        config: of the engine.
    """
    connection = duckdb.connect(config=config or {})
    for name, values in (("kind", _KINDS), ("outcome", _OUTCOMES)):
        connection.execute(f"CREATE TYPE {name} AS ENUM ({', '.join(map(repr, values))})")
    connection.execute(_JOURNAL if at_once else _JOURNAL + _ONCE, [list(files)])
    for statement in _MADE:
        connection.execute(statement.format(patience=patience, late=LATE_AT_ONCE if at_once else LATE))
    return connection


def asked(connection: duckdb.DuckDBPyConnection, query: str, *, patience: float) -> Iterable[dict[str, Any]]:
    """Give the rows of a query."""
    result = connection.sql(query.format(patience=patience))
    return [dict(zip(result.columns, row, strict=True)) for row in result.fetchall()]
