"""The tables once more, in SQL and by another engine: written from the documents, not from the Spark code."""

from __future__ import annotations

ROWS = """
  SELECT * EXCLUDE (copy) FROM (
    SELECT * RENAME ("at" AS ts), row_number() OVER (PARTITION BY process, seq) AS copy
    FROM read_parquet({journal}, union_by_name = true)) WHERE copy = 1
"""
"""The journal, each row once; `at` is a word of that engine's own."""

LATE = """
  SELECT DISTINCT a.pair, a.entity, a.message_id FROM m a JOIN m b
    ON a.pair = b.pair AND a.entity = b.entity AND a.sender = b.sender AND b.call > a.receipt AND b.place < a.place
  WHERE a.at_primary > 0 OR (b.at_primary = 0 AND a.queue = b.queue)
"""
"""The definition of what is late, word for word: each message with each. Not for more than some thousand."""

LATE_AT_ONCE = """
  SELECT pair, entity, message_id FROM (
    SELECT *,
      max(call) OVER (PARTITION BY pair, entity, sender ORDER BY place
        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS ahead,
      max(call) OVER (PARTITION BY pair, entity, sender, at_primary = 0, queue ORDER BY place
        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS ahead_in_queue
    FROM m WHERE seen > 0 AND receipt IS NOT NULL)
  WHERE if(at_primary > 0, ahead, ahead_in_queue) > receipt
"""
"""The same by a window, for the benchmark."""

VERDICTS = """
WITH j AS ({rows}),
m AS (
  SELECT pair, entity, message_id,
    count(*) FILTER (outcome = 'accepted-primary') AS at_primary,
    count(*) FILTER (outcome = 'accepted-backlog') AS in_backlog,
    count(*) FILTER (outcome = 'refused') AS refused,
    count(*) FILTER (outcome = 'unknown') AS unsure,
    count(*) FILTER (kind = 'AttemptFailed') AS failed,
    count(*) FILTER (kind = 'AttemptFailed' AND maybe_applied) AS doubtful,
    count(*) FILTER (kind = 'SendCompleted' AND maybe_duplicate) AS marked,
    count(*) FILTER (kind = 'MessageMoved') AS moved,
    count(*) FILTER (kind = 'MessageMoved' AND redelivered) + count(*) FILTER (kind = 'MessageMoved' AND NOT completed)
      AS shaky_moves,
    count(*) FILTER (kind = 'MessageMoved' AND maybe_duplicate) AS marked_moves,
    count(*) FILTER (kind = 'MessageDeadLettered') AS aside,
    any_value(reason) FILTER (kind = 'MessageDeadLettered') AS reason,
    count(*) FILTER (kind = 'MessageDelivered' AND NOT dead_letter) AS seen,
    count(*) FILTER (kind = 'MessageDelivered' AND NOT dead_letter AND settlement = 'completed') AS done,
    count(*) FILTER (kind = 'MessageDelivered' AND (dead_letter OR settlement = 'dead-lettered')) AS buried,
    count(*) FILTER (delivery_count > 1) + count(error) FILTER (settlement = 'completed') AS shaky_deliveries,
    max(ts) FILTER (outcome = 'accepted-backlog') AS diverted_at,
    min(ts) FILTER (kind = 'SendCompleted') AS first_sent,
    min(ts) FILTER (outcome IN ('accepted-primary', 'accepted-backlog')) AS receipt,
    min(ts - elapsed) FILTER (outcome IN ('accepted-primary', 'accepted-backlog')) AS call,
    max(ts) FILTER (outcome = 'accepted-primary' OR kind = 'MessageMoved') AS home,
    min(ts) FILTER (kind = 'MessageDelivered' AND NOT dead_letter) AS first_settled,
    max(ts) FILTER (kind = 'MessageDelivered' AND NOT dead_letter) AS last_settled,
    min(CAST(sequence_number AS HUGEINT)) FILTER (kind = 'MessageDelivered') AS place,
    max(time_to_live) AS lives, any_value(sender) AS sender, any_value(backlog_queue) AS queue
  FROM j WHERE message_id <> '' AND kind IN
    ('SendCompleted', 'AttemptFailed', 'MessageMoved', 'MessageDeadLettered', 'MessageDelivered')
  GROUP BY ALL),
seen AS (
  SELECT pair, entity, min(home) AS first, max(least(home, last_settled)) AS last FROM m WHERE seen > 0 GROUP BY ALL),
drains AS (SELECT pair, entity, ts - lasted AS since, ts AS looked FROM j WHERE cause = 'backlog drained'),
gaps AS (
  SELECT ts AS began, next_at AS ended FROM (
    SELECT ts, seq, lead(ts) OVER w AS next_at, lead(seq) OVER w AS next_seq FROM j
    WINDOW w AS (PARTITION BY process ORDER BY seq)) WHERE next_seq > seq + 1),
late AS ({late}),
minutes AS (
  SELECT pair, entity, home // 60 AS arrived, min(first_settled) AS first_settled, max(last_settled) AS last_settled
  FROM m WHERE home IS NOT NULL GROUP BY ALL),
told AS (
  SELECT pair, entity, coalesce(home, last_settled, first_sent) // 60 AS arrived,
    (min(least(call, first_sent, first_settled, home)) - {patience}) // 60 AS since,
    (max(greatest(first_sent, last_settled)) + {patience}) // 60 AS until
  FROM m GROUP BY ALL),
known AS (
  SELECT pair, entity, arrived, (coalesce(
    min(first_settled) OVER (PARTITION BY pair, entity ORDER BY arrived
      RANGE BETWEEN {patience} // 60 + 2 FOLLOWING AND UNBOUNDED FOLLOWING),
    max(last_settled) OVER (PARTITION BY pair, entity)) + {patience}) // 60 AS settled_by
  FROM minutes),
facts AS (
  SELECT m.*, s.first, s.last, l.message_id IS NOT NULL AS late,
    EXISTS (FROM drains d WHERE d.pair = m.pair AND d.entity = m.entity AND d.since > m.diverted_at + 1
      AND d.looked + {patience} <= (SELECT max(ts) FROM j)) AS emptied,
    EXISTS (FROM gaps g WHERE g.began // 60 <= k.settled_by AND (g.ended + 1) // 60 >= k.arrived) AS blind,
    (home IS NULL AND in_backlog > 0)
      OR EXISTS (FROM gaps g WHERE g.began // 60 <= t.until AND (g.ended + 1) // 60 >= t.since) AS untold,
    (SELECT max(ts) FROM j) AS finish
  FROM m LEFT JOIN seen s USING (pair, entity) LEFT JOIN late l USING (pair, entity, message_id)
    LEFT JOIN known k ON k.pair = m.pair AND k.entity = m.entity AND k.arrived = m.home // 60
    LEFT JOIN told t ON t.pair = m.pair AND t.entity = m.entity
      AND t.arrived = coalesce(m.home, m.last_settled, m.first_sent) // 60)
SELECT * EXCLUDE (first, last, finish, emptied), CASE
  WHEN at_primary + in_backlog + unsure = 0 AND refused > 0 THEN
    if(seen + buried + moved = 0, 'refused', if(untold, 'not journalled', 'phantom'))
  WHEN at_primary + in_backlog = 0 AND unsure + failed > 0 THEN if(seen + buried > 0, 'unknown, delivered', 'unknown')
  WHEN at_primary + in_backlog = 0 THEN if(aside + buried > 0 AND done = 0, 'dead-lettered', 'not journalled')
  WHEN done > 1 THEN if(marked_moves = 0 AND done - 1 > greatest(at_primary + in_backlog - 1, 0) + unsure
    + greatest(doubtful, marked) + shaky_moves + shaky_deliveries,
    if(untold, 'duplicated, unproven', 'duplicated, unexplained'), 'duplicated, explained')
  WHEN late AND seen > 0 AND NOT untold THEN 'out of order'
  WHEN done = 1 THEN 'delivered'
  WHEN buried > 0 THEN 'dead-lettered'
  WHEN seen > 0 THEN 'unsettled'
  WHEN home IS NULL AND aside > 0 THEN if(reason = 'TTLExpiredException', 'expired', 'dead-lettered')
  WHEN home IS NULL THEN if(emptied, 'lost', 'diverted')
  WHEN first IS NULL OR home < first THEN 'delivery not observed'
  WHEN home + lives <= finish THEN 'expired'
  WHEN home + {patience} < last THEN if(blind, 'unproven', 'lost')
  ELSE 'in flight' END AS verdict
FROM facts
"""

EPISODES = """
WITH j AS ({rows}),
c AS (SELECT *, previous IN ('healthy', 'draining') AND current IN ('failing', 'failed-over') AS starts
      FROM j WHERE kind = 'StateChanged'),
n AS (SELECT *, sum(starts::INT) OVER (PARTITION BY process, entity ORDER BY seq) AS number FROM c),
o AS (SELECT process, entity, number, min(seq) AS first, max(seq) AS last,
        min(ts) FILTER (starts) AS started_at,
        min(ts) FILTER (current = 'failed-over') AS failed_over_at,
        min(ts) FILTER (current IN ('healthy', 'draining')) AS up_at,
        min(ts) FILTER (current = 'healthy') AS ended_at
      FROM n WHERE number > 0 GROUP BY ALL)
SELECT o.*, count(s.seq) AS diverted FROM o LEFT JOIN j s ON s.process = o.process AND s.entity = o.entity
  AND s.outcome = 'accepted-backlog' AND s.seq BETWEEN o.first AND o.last
GROUP BY ALL
"""

AVAILABILITY = """
WITH j AS ({rows}),
s AS (SELECT *, floor(ts / 3600) * 3600 AS hour FROM j WHERE kind = 'SendCompleted')
SELECT entity, hour, count(*) AS attempted,
  count(*) FILTER (outcome = 'accepted-primary') AS accepted_primary,
  count(*) FILTER (outcome = 'accepted-backlog') AS accepted_backlog,
  count(*) FILTER (outcome = 'refused') AS refused,
  count(*) FILTER (outcome = 'unknown') AS unknown,
  quantile_disc(elapsed, 0.5) FILTER (starts_with(outcome, 'accepted')) AS p50,
  quantile_disc(elapsed, 0.99) FILTER (starts_with(outcome, 'accepted')) AS p99,
  max(elapsed) FILTER (starts_with(outcome, 'accepted')) AS most
FROM s GROUP BY ALL
"""

BACKLOG = """
WITH j AS ({rows}),
f AS (SELECT coalesce(backlog_queue, queue) AS queue, message_id,
        min(ts) FILTER (outcome = 'accepted-backlog') AS came,
        max(ts) FILTER (kind IN ('MessageMoved', 'MessageDeadLettered')) AS gone
      FROM j WHERE outcome = 'accepted-backlog' OR kind IN ('MessageMoved', 'MessageDeadLettered') GROUP BY ALL),
q AS (SELECT DISTINCT queue FROM f),
e AS (SELECT min(came) // 60 AS first, (SELECT max(ts) // 60 FROM j) AS last FROM f),
t AS (SELECT unnest(range(first::BIGINT, last::BIGINT + 1)) AS minute FROM e),
d AS (SELECT q.queue, t.minute * 60 AS minute, count(f.came) AS depth, min(floor(f.came / 60)) * 60 AS oldest
      FROM q CROSS JOIN t LEFT JOIN f ON f.queue = q.queue AND f.came < t.minute * 60 + 60
        AND (f.gone IS NULL OR f.gone >= t.minute * 60 + 60) GROUP BY ALL)
SELECT queue, minute, depth, minute + 60 - oldest AS oldest_age FROM d WHERE depth > 0
"""

SYPHON = """
WITH j AS ({rows})
SELECT entity, floor(ts / 3600) * 3600 AS hour,
  count(*) FILTER (kind = 'MessageMoved') AS moved,
  count(*) FILTER (kind = 'MessageDeadLettered') AS dead_lettered,
  quantile_disc(waited, 0.95) AS p95, max(waited) AS most
FROM j WHERE kind IN ('MessageMoved', 'MessageDeadLettered') GROUP BY ALL
"""

COST = """
WITH j AS ({rows}),
counting AS (SELECT DISTINCT process FROM j WHERE kind = 'OperationsCounted'),
c AS (SELECT side, floor(ts / 86400) * 86400 AS day, sends + receives + pings AS operations
      FROM j WHERE kind = 'OperationsCounted'),
guess AS (
  SELECT 'primary' AS side, floor(ts / 86400) * 86400 AS day, 1 AS operations FROM j ANTI JOIN counting USING (process)
  WHERE kind IN ('MessageDelivered', 'MessageMoved', 'PingCompleted') OR outcome = 'accepted-primary'
    OR (kind = 'AttemptFailed' AND queue IS NULL)
  UNION ALL
  SELECT 'secondary', floor(ts / 86400) * 86400, 1 FROM j ANTI JOIN counting USING (process)
  WHERE kind IN ('MessageMoved', 'MessageDeadLettered') OR outcome = 'accepted-backlog'
    OR (kind = 'AttemptFailed' AND queue IS NOT NULL))
SELECT side, day, sum(operations)::BIGINT AS operations FROM (FROM c UNION ALL FROM guess) GROUP BY ALL
"""

ROTATION = """
WITH j AS ({rows}),
r AS (SELECT process, queue, ts, in_use, lead(ts) OVER (PARTITION BY process, queue ORDER BY seq) AS back
      FROM j WHERE kind = 'RotationChanged')
SELECT process, queue, ts AS left_at, back - ts AS out_of_use FROM r WHERE NOT in_use
"""

ORDER = """
WITH j AS ({rows}),
s AS (SELECT pair, entity, message_id, any_value(sender) AS sender FROM j WHERE outcome LIKE 'accepted-%' GROUP BY ALL),
d AS (SELECT DISTINCT pair, entity, message_id FROM j WHERE kind = 'MessageDelivered' AND NOT dead_letter)
SELECT pair, entity, 'sender:' || sender AS order_key, count(*) AS delivered
FROM s JOIN d USING (pair, entity, message_id) GROUP BY ALL
"""
"""What was late is told by the verdicts."""

OBSERVATION = """
WITH j AS ({rows}),
m AS (
  SELECT pair, entity, message_id, max(ts) FILTER (outcome = 'accepted-primary' OR kind = 'MessageMoved') AS home,
    bool_or(kind = 'MessageDelivered') AS seen, max(ts) FILTER (kind = 'MessageDelivered') AS last_settled
  FROM j WHERE message_id <> '' GROUP BY ALL),
d AS (SELECT pair, entity, max(ts - lasted) AS drained_from FROM j WHERE cause = 'backlog drained' GROUP BY ALL)
SELECT pair, entity, count(*) AS messages, min(home) FILTER (seen) AS observed_from,
  max(least(home, last_settled)) FILTER (seen) AS observed_until, any_value(drained_from) AS drained_from
FROM m LEFT JOIN d USING (pair, entity) GROUP BY ALL
"""

PROCESSES = """
WITH j AS ({rows}),
p AS (
  SELECT process, count(*) AS rows, max(seq) - min(seq) + 1 - count(*) AS missing, min(ts) AS first_at,
    max(ts) AS last_at, any_value(host) AS host, any_value(pid) AS pid, sum("count") AS dropped,
    bool_or(kind = 'JournalClosed') AS closed
  FROM j GROUP BY ALL)
SELECT *, CASE WHEN closed THEN 'closed' WHEN (SELECT max(last_at) FROM p) - last_at > {patience} THEN 'killed'
  ELSE 'open' END AS ended FROM p
"""
