"""Rules of subscriptions in XML.

The shapes are those of the service's data contracts (Service Bus documentation: reference of the REST API, "Create
rule"); "Topic filters and actions" says what they mean.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from xml.etree.ElementTree import Element  # the type

from pairmq_servicebus.server.amqp import Timestamp
from pairmq_servicebus.server.atom._xml import INSTANCE, SCHEMA, SERVICE_BUS, XmlError, child, child_text, schema_type
from pairmq_servicebus.server.atom._xml import tag as written
from pairmq_servicebus.server.atom._xml import text as escaped
from pairmq_servicebus.server.broker import CorrelationFilter, FalseFilter, Filter, Rule, SqlFilter, TrueFilter
from pairmq_servicebus.server.descriptions import read_flag

_LEVEL = "<CompatibilityLevel>20</CompatibilityLevel>"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_INT_32 = 2**31

# The order is the service's.
_CORRELATION = {
    "CorrelationId": "correlation_id",
    "MessageId": "message_id",
    "To": "to",
    "ReplyTo": "reply_to",
    "Label": "label",
    "SessionId": "session_id",
    "ReplyToSessionId": "reply_to_session_id",
    "ContentType": "content_type",
}


def instant(seconds: float) -> str:
    """Write an instant, given in Unix seconds, as the service does: in UTC."""
    return (_EPOCH + timedelta(seconds=seconds)).isoformat(timespec="microseconds").replace("+00:00", "Z")


def read_rule(description: Element, name: str) -> Rule:
    """Read a ``RuleDescription``.

    Args:
        description: the element.
        name: the rule's, where the element has none.

    Returns:
        The rule; without a filter it takes every message.

    Raises:
        XmlError: a filter, action or value of a kind that is not known, or one that can't be read.
    """
    filter_element, action = child(description, "Filter"), child(description, "Action")
    expression = None
    if action is not None and schema_type(action) != "EmptyRuleAction":
        if schema_type(action) != "SqlRuleAction":
            raise XmlError(f"The action's type is {schema_type(action)!r}; it must be SqlRuleAction.")
        if child(action, "Parameters") is not None and len(_values(action, "Parameters")):
            raise XmlError("This local server knows no parameters of actions.")
        expression = child_text(action, "SqlExpression") or None
    kept = TrueFilter() if filter_element is None else _read_filter(filter_element)
    return Rule(child_text(description, "Name") or name, kept, expression)


def write_rule(rule: Rule) -> str:
    """Write a ``RuleDescription``.

    Args:
        rule: the rule.

    Returns:
        The element's text, with its namespaces.
    """
    if rule.action is None:
        action = '<Action i:type="EmptyRuleAction"/>'
    else:
        action = f'<Action i:type="SqlRuleAction">{written("SqlExpression", rule.action)}{_LEVEL}</Action>'
    parts = (
        _write_filter(rule.filter),
        action,
        written("CreatedAt", instant(rule.created_at)),
        written("Name", rule.name),
    )
    return f'<RuleDescription xmlns="{SERVICE_BUS}" xmlns:i="{INSTANCE}">{"".join(parts)}</RuleDescription>'


def _read_filter(element: Element) -> Filter:
    kind = schema_type(element)
    if kind == "TrueFilter":
        return TrueFilter()
    if kind == "FalseFilter":
        return FalseFilter()
    if kind == "SqlFilter":
        expression = child_text(element, "SqlExpression")
        if not expression:
            raise XmlError("The SqlFilter has no SqlExpression.")
        return SqlFilter(expression, _values(element, "Parameters"))
    if kind == "CorrelationFilter":
        fields = {field: child_text(element, name) for name, field in _CORRELATION.items()}
        return CorrelationFilter(**fields, properties=_values(element, "Properties"))
    raise XmlError(
        f"The filter's type is {kind!r}; it must be SqlFilter, CorrelationFilter, TrueFilter or FalseFilter."
    )


def _write_filter(kept: Filter) -> str:
    if isinstance(kept, CorrelationFilter):
        fields = ((name, getattr(kept, field)) for name, field in _CORRELATION.items())
        parts = "".join(written(name, value) for name, value in fields if value is not None)
        properties = _write_values("Properties", kept.properties)
        return f'<Filter i:type="CorrelationFilter">{parts}{properties}</Filter>'
    if isinstance(kept, SqlFilter):
        parameters = _write_values("Parameters", kept.parameters)
        return f'<Filter i:type="SqlFilter">{written("SqlExpression", kept.expression)}{_LEVEL}{parameters}</Filter>'
    kind, expression = ("TrueFilter", "1=1") if isinstance(kept, TrueFilter) else ("FalseFilter", "1=0")
    return f'<Filter i:type="{kind}">{written("SqlExpression", expression)}{_LEVEL}</Filter>'


# ----------------------------------------------------------------------------------------------------- typed values


def _values(parent: Element, name: str) -> dict[str, object]:
    listed = child(parent, name)
    found: dict[str, object] = {}
    for entry in () if listed is None else listed:
        key, value = child_text(entry, "Key"), child(entry, "Value")
        if key is None or value is None:
            raise XmlError(f"An entry of {name} lacks its Key or its Value.")
        kind = schema_type(value)
        reader = _READERS.get(kind)
        if reader is None:
            raise XmlError(f"The value of {key!r} is of type {kind!r}, which this local server does not know.")
        try:
            found[key] = reader(value.text or "")
        except (ValueError, OverflowError):
            raise XmlError(f"The value of {key!r} is no {kind}.") from None
    return found


def _write_values(name: str, values: Mapping[str, object]) -> str:
    if not values:
        return f"<{name}/>"
    entries = []
    for key, value in values.items():
        kind, content = _typed(value)
        entries.append(
            f"<KeyValueOfstringanyType>{written('Key', key)}"
            f'<Value xmlns:d6p1="{SCHEMA}" i:type="d6p1:{kind}">{escaped(content)}</Value></KeyValueOfstringanyType>'
        )
    return f"<{name}>{''.join(entries)}</{name}>"


def _typed(value: object) -> tuple[str, str]:
    if isinstance(value, bool):
        return "boolean", str(value).lower()
    if isinstance(value, Timestamp):
        return "dateTime", (_EPOCH + timedelta(milliseconds=value)).isoformat().replace("+00:00", "Z")
    if isinstance(value, int):
        return ("int" if -_INT_32 <= value < _INT_32 else "long"), str(int(value))
    if isinstance(value, float):
        return "double", repr(float(value)).replace("inf", "INF").replace("nan", "NaN")
    return "string", str(value)


def _whole(content: str) -> int:
    number = int(content)
    if not -(2**63) <= number < 2**63:
        raise ValueError(content)
    return number


def _timestamp(content: str) -> Timestamp:
    # The wire knows instants in milliseconds; one without a zone is in UTC.
    moment = datetime.fromisoformat(content.strip())
    return Timestamp(((moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - _EPOCH) // timedelta(milliseconds=1))


_READERS: Mapping[str, Callable[[str], object]] = {
    **dict.fromkeys(("int", "long", "short", "byte", "unsignedInt", "unsignedShort", "unsignedByte"), _whole),
    **dict.fromkeys(("double", "float"), float),
    "boolean": read_flag,
    "string": str,
    "guid": str,
    "dateTime": _timestamp,
}
