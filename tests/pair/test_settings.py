"""Settings: arguments, then the environment, then a file."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from pairmq import ConfigurationError, Pair, PairOptions
from pairmq.pair import load_settings, parse_duration
from pairmq.plugins import ObserverRecord, registry
from pairmq.testing import SimulatedBroker
from pairmq_rabbitmq.plugin import CAPABILITIES

EAST, WEST = "redis://:geheim@127.0.0.1:1/0", "redis://:geheim@127.0.0.1:2/0"


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "pairmq.toml"
    path.write_text(
        """
        [pair]
        primary = "redis://file-east/0"
        secondary = "redis://file-west/0"
        failover_interval = "500ms"
        backlog_queue_count = 3
        enable_syphon = true
        allowed_entities = ["orders", "prices/*"]
        """
    )
    return path


def test_the_file_gives_what_nothing_else_does(file):
    settings = load_settings(config=file, environ={})
    assert settings.primary == "redis://file-east/0"
    assert settings.options == PairOptions(
        failover_interval=0.5, backlog_queue_count=3, enable_syphon=True, allowed_entities=("orders", "prices/*")
    )


def test_the_environment_wins_over_the_file(file):
    environ = {"PAIRMQ_CONFIG": str(file), "PAIRMQ_FAILOVER_INTERVAL": "5min", "PAIRMQ_PRIMARY": "redis://env/0"}
    settings = load_settings(environ=environ)
    assert (settings.primary, settings.secondary) == ("redis://env/0", "redis://file-west/0")
    assert settings.options.failover_interval == 300


def test_arguments_win_over_the_environment(file):
    environ = {"PAIRMQ_PRIMARY": "redis://env/0", "PAIRMQ_BACKLOG_QUEUE_COUNT": "7"}
    overrides = {"backlog_queue_count": 9, "failover_interval": None}
    settings = load_settings(primary="redis://arg/0", config=file, environ=environ, overrides=overrides)
    assert settings.primary == "redis://arg/0"
    assert settings.options.backlog_queue_count == 9
    assert settings.options.failover_interval == 0.5


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("failover_interval", "10", 10.0),
        ("failover_interval", "1.5 s", 1.5),
        ("ping_primary_interval", "250ms", 0.25),
        ("syphon_receive_wait", "1h", 3600.0),
        ("backlog_retry_interval", "2m", 120.0),
        ("enable_syphon", "Yes", True),
        ("failover_on_busy", "0", False),
        ("syphon_batch", "12", 12),
        ("syphon_max_rate", "2.5", 2.5),
        ("while_failing", "raise", "raise"),
        ("backlog_name_template", "b-{index}", "b-{index}"),
        ("allowed_entities", "orders, prices/*", ("orders", "prices/*")),
    ],
)
def test_every_kind_of_option_can_be_a_variable(name, text, value):
    environ = {"PAIRMQ_PRIMARY": EAST, "PAIRMQ_SECONDARY": WEST, f"PAIRMQ_{name.upper()}": text}
    assert getattr(load_settings(environ=environ).options, name) == value


@pytest.mark.parametrize(
    ("name", "text", "error"),
    [
        ("failover_interval", "soon", "PAIRMQ_FAILOVER_INTERVAL: invalid duration 'soon'"),
        ("failover_interval", "-1", "PAIRMQ_FAILOVER_INTERVAL: invalid duration '-1'"),
        ("failover_interval", "2h", "PAIRMQ_FAILOVER_INTERVAL is 7200.0: it must be 0 s to 60 min"),
        ("enable_syphon", "maybe", "PAIRMQ_ENABLE_SYPHON is 'maybe': it must be true or false"),
        ("syphon_batch", "many", "PAIRMQ_SYPHON_BATCH is 'many': it must be a number"),
        ("while_failing", "Wait", "PAIRMQ_WHILE_FAILING is 'Wait': it must be 'wait' or 'raise'"),
        ("journal", "s3://bucket", "PAIRMQ_JOURNAL is a URL: it must be the path of a directory"),
        ("backlog_queue_count", "0", "PAIRMQ_BACKLOG_QUEUE_COUNT is 0: it must be a whole number from 1 to 1000"),
    ],
)
def test_a_wrong_variable_is_named(name, text, error):
    environ = {"PAIRMQ_PRIMARY": EAST, "PAIRMQ_SECONDARY": WEST, f"PAIRMQ_{name.upper()}": text}
    with pytest.raises(ConfigurationError, match=error):
        load_settings(environ=environ)


def test_a_missing_broker_says_where_to_name_it():
    with pytest.raises(ConfigurationError, match=r"no secondary broker: .*PAIRMQ_SECONDARY"):
        load_settings(primary=EAST, environ={})


@pytest.mark.parametrize(
    ("content", "error"),
    [
        ("[pair]\ntypo = 1", "unknown typo"),
        ("pair = 3", r"\[pair\] must be a table"),
        (
            "[pairs]\nbacklog_queue_count = 3",
            r"nothing reads \[pairs\]: the table of a pair's settings is named \[pair\]",
        ),
        ("[Pair]\nbacklog_queue_count = 3\n[pair]", r"nothing reads \[Pair\]: "),
        ("[tool.pairmq]\nbacklog_queue_count = 3", r"nothing reads \[tool\]: "),
        ("backlog_queue_count = 3", r"backlog_queue_count before any table: write \[pair\] in a line above"),
        ("[pair]\nprimary = 'memory://a'\n[[pairs]]\nx=1", r"nothing reads \[pairs\]"),
        ("[pair]\nsend_timeout = 'soon'", r"pairmq.toml: \[pair\] send_timeout: invalid duration 'soon'"),
        ("[pair]\nsend_timeout = true", r"pairmq.toml: \[pair\] send_timeout is True: "),
        ("[pair]\nbacklog_queue_count = 0", r"pairmq.toml: \[pair\] backlog_queue_count is 0: "),
        ("[pair]\njournal = 3", r"pairmq.toml: \[pair\] journal is a value of type int: "),
        ("[pair", "is not valid TOML"),
        ("\ufffe", "is not valid TOML"),
    ],
)
def test_a_wrong_file_is_one_clear_error(tmp_path, content, error):
    path = tmp_path / "pairmq.toml"
    path.write_text(content)
    with pytest.raises(ConfigurationError, match=error):
        load_settings(primary=EAST, secondary=WEST, config=path, environ={})


def test_a_url_that_is_a_number_is_one_clear_error(tmp_path):
    path = tmp_path / "pairmq.toml"
    path.write_text("[pair]\nprimary = 1")
    with pytest.raises(ConfigurationError, match=r"pairmq.toml: \[pair\] primary is a value of type int: it must be a"):
        load_settings(secondary=WEST, config=path, environ={})


def test_the_file_is_not_named_for_a_value_that_overrides_it(tmp_path):
    path = tmp_path / "pairmq.toml"
    path.write_text("[pair]\nsend_timeout = 3")
    with pytest.raises(ConfigurationError, match=r"^send_timeout is 0"):
        load_settings(primary=EAST, secondary=WEST, config=path, environ={}, overrides={"send_timeout": 0})


def test_a_file_with_a_byte_order_mark_is_read(file):
    file.write_text(file.read_text(), "utf-8-sig")
    assert load_settings(config=file, environ={}).options.backlog_queue_count == 3


def test_tables_of_other_programs_beside_that_of_the_pair_are_left_alone(file):
    file.write_text(file.read_text() + "\n[logging]\nlevel = 'INFO'\n")
    assert load_settings(config=file, environ={}).options.backlog_queue_count == 3


def test_a_file_that_is_not_there_is_one_clear_error(tmp_path):
    with pytest.raises(ConfigurationError, match="No such file"):
        load_settings(config=tmp_path / "none.toml", environ={})


def test_an_unknown_option_names_the_known_ones():
    with pytest.raises(ConfigurationError, match="unknown option failover: known are backlog_queue_count"):
        load_settings(primary=EAST, secondary=WEST, environ={}, overrides={"failover": 1})


def test_passwords_are_in_no_repr():
    settings = load_settings(primary=EAST, secondary=WEST, environ={})
    assert "geheim" not in repr(settings)


@pytest.mark.parametrize("side", ["primary", "secondary"])
def test_a_broker_that_is_neither_url_nor_transport_is_refused_whatever_the_environment_names(monkeypatch, side):
    """A pair in a pair was said to lack a secondary, or was made with that of the environment."""
    monkeypatch.setenv(f"PAIRMQ_{side.upper()}", EAST)
    brokers = {"primary": WEST, "secondary": WEST, side: Pair.connect("memory://a", "memory://b")}
    with pytest.raises(ConfigurationError, match=f"^{side} is a value of type Pair: give a URL or a transport"):
        Pair.connect(**brokers)


def test_options_and_single_options_are_not_mixed():
    with pytest.raises(ConfigurationError, match="either options or failover_interval"):
        Pair.connect(EAST, WEST, options=PairOptions(), failover_interval=3)


@pytest.fixture
def watched(tmp_path):
    """A file that names what a pair can't be told by its options."""
    path = tmp_path / "watched.toml"
    path.write_text(
        f"""
        [pair]
        primary = "redis://file-east/0"
        secondary = "redis://file-west/0"
        failover_interval = 7
        journal = '{tmp_path / "journal"}'
        observers = ["plain"]
        """
    )
    return path


@pytest.fixture
def made(monkeypatch):
    """The observers that are made: of the one that is called plain its name, of a journal's its directory."""
    found = []

    class Noted:
        def __init__(self, what="plain"):
            found.append(str(what))

        def on_event(self, event):
            pass

        async def close(self):
            pass

    monkeypatch.setattr(registry, "observers", lambda: [ObserverRecord(name="plain", factory=Noted)])
    monkeypatch.setattr("pairmq.observe.journal.JournalObserver", Noted)
    return found


@pytest.mark.parametrize("options", [{"options": PairOptions()}, {}])
def test_the_file_is_read_whatever_else_is_given(watched, tmp_path, made, options):
    Pair.connect(EAST, WEST, config=watched, **options)
    assert made == ["plain", str(tmp_path / "journal")]


def test_what_is_given_wins_over_the_file_that_is_given(watched, made):
    pair = Pair.connect(EAST, WEST, options=PairOptions(failover_interval=3), config=watched, journal="here")
    assert "file-" not in repr(pair)
    assert pair.options.failover_interval == 3
    assert made == ["plain", "here"]


def test_connections_of_ones_own_win_over_the_file_too(watched, made):
    primary, secondary = SimulatedBroker("east").transport(), SimulatedBroker("west").transport()
    pair = Pair.connect(primary, secondary, options=PairOptions(failover_interval=3), config=watched)
    assert (pair.primary, pair.secondary, pair.options.failover_interval) == (primary, secondary, 3)


@pytest.mark.parametrize("options", [{"options": PairOptions()}, {}])
def test_a_file_that_is_not_there_is_an_error_whatever_else_is_given(tmp_path, options):
    with pytest.raises(ConfigurationError, match="No such file"):
        Pair.connect(EAST, WEST, config=tmp_path / "none.toml", **options)


def test_with_all_given_the_file_of_the_environment_is_left_alone(watched, made, monkeypatch):
    monkeypatch.setenv("PAIRMQ_CONFIG", str(watched))
    Pair.connect(EAST, WEST, options=PairOptions())  # a program that has put its settings together by itself
    assert made == []


def test_session_order_is_refused_with_a_secondary_that_cannot_keep_it(monkeypatch):
    limited = replace(CAPABILITIES, ordered_consumer=False)
    monkeypatch.setattr(type(registry.transport("amqp://h/")), "capabilities", property(lambda _: limited))
    with pytest.raises(ConfigurationError, match=r"ordering='session' can't be kept with amqp://.* as the secondary"):
        Pair.connect("memory://a", "amqp://guest:geheim@127.0.0.1:1/", ordering="session")


def test_session_order_is_taken_with_a_secondary_that_can_keep_it():
    assert Pair.connect("amqp://127.0.0.1:1/", "memory://b", ordering="session").options.ordering == "session"


@pytest.mark.parametrize("journal", [EAST, 3])
def test_a_journal_that_is_no_directory_is_refused_without_its_password(journal):
    with pytest.raises(ConfigurationError, match=r"journal is a .*must be the path of a directory") as caught:
        load_settings(primary=EAST, secondary=WEST, environ={}, journal=journal)
    assert "geheim" not in str(caught.value)


def test_a_pair_takes_no_url_for_its_journal():
    with pytest.raises(ConfigurationError, match="journal is a URL"):
        Pair.connect(EAST, WEST, options=PairOptions(), journal=EAST)


def test_observers_are_named_in_the_file_or_in_the_environment(tmp_path):
    path = tmp_path / "pairmq.toml"
    path.write_text(f'[pair]\nprimary = "{EAST}"\nsecondary = "{WEST}"\nobservers = ["opentelemetry", "audit"]\n')
    assert load_settings(config=path, environ={}).observers == ("opentelemetry", "audit")
    assert load_settings(config=path, environ={"PAIRMQ_OBSERVERS": " one, two,"}).observers == ("one", "two")
    assert load_settings(primary=EAST, secondary=WEST, environ={}).observers == ()


@pytest.mark.parametrize("wrong", ['"opentelemetry"', "[1]", "true"])
def test_observers_are_a_list_of_names(tmp_path, wrong):
    path = tmp_path / "pairmq.toml"
    path.write_text(f'[pair]\nprimary = "{EAST}"\nsecondary = "{WEST}"\nobservers = {wrong}\n')
    text = re.escape(f"settings file {path}: [pair] observers must be a list of names")
    with pytest.raises(ConfigurationError, match=f"^{text}"):
        load_settings(config=path, environ={})


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("10", 10),
        ("10s", 10),
        ("500ms", 0.5),
        ("5min", 300),
        ("5m", 300),
        ("1.5h", 5400),
        ("2d", 172_800),
        (" 3 s ", 3),
    ],
)
def test_a_duration_is_a_number_with_or_without_its_unit(text, seconds):
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "s", "-1", "1e3", "10 parsecs", "\u0661\u0660", "nan", "1:30"])
def test_the_error_for_an_invalid_duration_says_how_to_write_one(text):
    with pytest.raises(ConfigurationError, match=r"use e\.g\. 10, 10s, 500ms, 5min, 1h or 2d"):
        parse_duration(text)
