"""Read a backlog queue on RabbitMQ without PairMQ: each message as it was before the outage, a JSON object a line.

usage: python read_backlog.py amqp://user:password@host/vhost QUEUE [--take]

Without --take the messages stay in the queue.
"""

import json
import sys

import pika

SET_ASIDE = {
    "x-ms-sessionid": ("session_id", str),
    "x-ms-timetolive": ("time_to_live", float),  # seconds
    "x-ms-scheduledenqueuetimeutc": ("scheduled_enqueue_at", str),  # ISO 8601, UTC
    "x-pairmq-priority": ("priority", int),
}
NOT_YOURS = ("x-pairmq-", "x-delivery-count", "x-acquired-count", "x-death", "x-first-death-")


def original(properties, body):
    headers = dict(properties.headers or {})
    message = {"entity": headers.pop("x-ms-path"), "kind": headers.pop("x-pairmq-kind", "queue")}
    message["diverted_at"] = headers.pop("x-pairmq-diverted-at")
    message["maybe_duplicate"] = headers.pop("x-pairmq-maybe-duplicate", "") == "true"
    message |= {name: read(headers.pop(header)) for header, (name, read) in SET_ASIDE.items() if header in headers}
    own = {name: value for name, value in headers.items() if not name.startswith(NOT_YOURS)}
    return message | {"message_id": properties.message_id, "properties": own, "body": body.decode("utf-8", "replace")}


with pika.BlockingConnection(pika.URLParameters(sys.argv[1])) as connection:
    channel = connection.channel()
    while (got := channel.basic_get(sys.argv[2]))[0] is not None:
        print(json.dumps(original(*got[1:]), default=str), flush=True)
        if "--take" in sys.argv:
            channel.basic_ack(got[0].delivery_tag)
