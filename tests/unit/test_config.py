import re
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shmsim.config import ConfigError, RunConfig, load_config, parse_config, parse_policy
from shmsim.policies import POLICIES, PRESETS, GraceThenPark, Park, SpinThenPark, WakeAhead
from shmsim.routing import SlotClass
from shmsim.tape import Tape
from shmsim.units import FOREVER_NS, MS, US, S, format_ns

FULL = """
[engine]
workers = 2
calls_per_step = 1
scheduling = "async"
max_sequences = 8
max_batched_tokens = 512
device_wait = "WakeAhead:guard=150us"
devices = 1
batches_in_flight = 3

[cores]
n = 3
engines = 2
quota = 1.5
period = "50ms"
slice = "3ms"
tick = "1ms"
steal_every = "1s"
steal = "2ms"
guarded = false
slowdown = 0.01

[payload]
bytes_per_prefill_token = 8192
bytes_per_step = 100
routes = "vllm-arena"
divert_bytes = 65536
arena = [{ slot_bytes = 1048576, slots = 4 }, { slot_bytes = 8388608, slots = 2 }]
memory = "registered"
output_bytes = 512

[workload]
kind = "open"
requests = 7
rate_per_s = 3
burstiness = 0.5
prompt_p50 = 10
prompt_p95 = 20
output_p50 = 5
output_p95 = 5
max_output_tokens = 4

[device]
step = "1.5 ms"
per_sequence = "0us"
per_prefill_token = "2us"
jitter = 0

[run]
seed = 42
repeats = 3
delay_price = 2
pin = false

[[policy]]
preset = "vllm-1s"

[[policy]]
name = "mine"
kind = "WakeAhead"
guard = "80us"
smoothing = 0.5
"""


def parse(text):
    return parse_config(tomllib.loads(text))


def test_an_empty_file_is_the_default():
    assert parse("") == RunConfig()


def test_every_value_of_a_file_arrives():
    config = parse(FULL)
    assert vars(config.engine) == {
        "workers": 2,
        "calls_per_step": 1,
        "scheduling": "async",
        "max_sequences": 8,
        "max_batched_tokens": 512,
        "device_wait": "WakeAhead:guard=150us",
        "devices": 1,
        "batches_in_flight": 3,
    }
    assert vars(config.cores) == {
        "n": 3,
        "engines": 2,
        "quota": 1.5,
        "period_ns": 50 * MS,
        "slice_ns": 3 * MS,
        "tick_ns": 1 * MS,
        "steal_every_ns": 1 * S,
        "steal_ns": 2 * MS,
        "guarded": False,
        "slowdown": 0.01,
    }
    assert vars(config.payload) == {
        "bytes_per_prefill_token": 8192,
        "bytes_per_step": 100,
        "routes": "vllm-arena",
        "divert_bytes": 65536,
        "arena": (SlotClass(1048576, 4), SlotClass(8388608, 2)),
        "memory": "registered",
        "output_bytes": 512,
    }
    assert config.payload.plan == (config.payload.arena, 65536)
    assert (config.workload.kind, config.workload.requests) == ("open", 7)
    assert (config.workload.rate_per_s, config.workload.burstiness) == (3.0, 0.5)
    assert config.device.step_time == (1500 * US, 0, 2 * US, 0.0)
    assert (config.seed, config.repeats, config.delay_price, config.pin) == (42, 3, 2.0, False)
    assert [(p.name, p.policy) for p in config.policies] == [
        ("vllm-1s", GraceThenPark(1 * S)),
        ("mine", WakeAhead(80 * US, 0.5)),
    ]


def test_whole_numbers_become_floats_where_a_policy_or_a_rate_needs_one():
    config = parse(FULL.replace("smoothing = 0.5", "smoothing = 1"))
    assert type(config.policies[1].policy.smoothing) is float
    assert type(config.workload.rate_per_s) is float
    assert type(config.device.jitter) is float


@given(st.integers(1, 60 * 10**6))
def test_a_duration_of_a_file_is_exact(step_us):
    assert parse(f'device.step = "{step_us}us"').device.step_ns == step_us * US


# Workloads.


def test_the_workload_is_drawn_as_described_and_outputs_are_cut():
    workload = parse(FULL).workload.build(Tape(1))
    assert len(workload.requests) == 7
    assert {r.output_tokens for r in workload.requests} == {4}
    assert not workload.concurrency
    workload = parse('workload = {kind = "closed", requests = 9, concurrency = 3}').workload
    assert workload.build(Tape(1)).concurrency == 3
    assert workload.build(Tape(1)) == workload.build(Tape(1)) != workload.build(Tape(2))


def test_a_trace_is_found_beside_its_config_file(tmp_path):
    (tmp_path / "trace.csv").write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:15:46,374,44\n2023-11-16 18:15:50,396,109\n2023-11-16 18:15:51,1,2\n"
    )
    (tmp_path / "run.toml").write_text(
        '[workload]\nkind = "trace"\ntrace = "trace.csv"\nrequests = 2\nspeed = 2\n'
        'max_output_tokens = 50\nstart = "1s"\n'
    )
    workload = load_config(tmp_path / "run.toml").workload.build(Tape(1))
    assert workload.requests == ((1500 * MS, 396, 50), (2 * S, 1, 2))


# What is wrong is named, with what would be right.

BAD = {
    "unknown section": ("enginee.workers = 1", "unknown key enginee; did you mean engine?"),
    "unknown key": ("engine.worker = 1", "unknown key engine.worker; did you mean engine.workers?"),
    "unit in the key": (
        'device.step_ns = "2ms"',
        "unknown key device.step_ns; did you mean device.step?",
    ),
    "of another section": ("engine.concurrency = 1", "concurrency is a key of [workload]"),
    "of a section": ("workers = 1", "unknown key workers; workers is a key of [engine]"),
    "of two sections": ("engine.kind = 1", "kind is a key of [workload] and of [device]"),
    "nothing near": ("engine.zzz = 1", "unknown key engine.zzz; known are workers, calls_per_step"),
    "unknown run key": ("run.sead = 1", "unknown key run.sead; did you mean run.seed?"),
    "no unit": ('device.step = "2"', "device.step: duration '2' has no unit; write one of ns, us"),
    "a bare number": (
        "device.step = 2",
        "device.step must be a duration with a unit, as in '50us', got 2",
    ),
    "no duration": ('device.step = "fast"', "device.step: 'fast' is not a duration"),
    "negative": ('device.step = "-2ms"', "device.step must be from 1 µs to 60 s, got -2 ms"),
    "absurd": ('device.step = "5min"', "device.step must be from 1 µs to 60 s, got 300 s"),
    "too many workers": ("engine.workers = 1000", "engine.workers must be from 1 to 64, got 1000"),
    "more devices than workers": (
        "engine = {workers = 2, devices = 3}",
        "engine.devices must be at most engine.workers = 2, got 3; 0 gives each worker one",
    ),
    "unknown wait for the device": (
        'engine.device_wait = "spinn"',
        "engine.device_wait: unknown policy 'spinn'; did you mean spin?",
    ),
    "unknown routes": ('payload.routes = "flip"', "payload.routes must be one of vllm, vllm-arena"),
    "an arena that is no list": (
        "payload.arena = {slot_bytes = 8, slots = 1}",
        "payload.arena must be a list of slot classes, as in arena = [{ slot_bytes =",
    ),
    "half a slot class": (
        "payload.arena = [{slots = 1}]",
        "payload.arena[0] needs both slot_bytes and slots, got {'slots': 1}",
    ),
    "a word too many": (
        "payload.arena = [{slot_bytes = 8, slot = 1}]",
        "unknown key payload.arena[0].slot; did you mean payload.arena[0].slots?",
    ),
    "a slot class without slots": (
        "payload.arena = [{slot_bytes = 8388608, slots = 0}]",
        "payload.arena.slots must be from 1 to 1048576, got 0",
    ),
    "slots that nothing fits": (
        "payload.arena = [{slot_bytes = 8, slots = 1}]",
        "payload: no buffer would ever fit: ArenaPlan.divert_bytes is 1048576 bytes",
    ),
    "registered, but what": (
        'payload.memory = "registered"',
        'payload.memory = "registered" needs a payload.arena',
    ),
    "no worker": ("engine.workers = 0", "engine.workers must be from 1 to 64, got 0"),
    "not a number": (
        "workload.rate_per_s = nan",
        "workload.rate_per_s must be from 1e-06 to 1000000.0, got nan",
    ),
    "endless": ("workload.rate_per_s = inf", "got inf"),
    "a fraction": ("engine.workers = 1.5", "engine.workers must be a whole number, got 1.5"),
    "a truth value": ("engine.workers = true", "engine.workers must be a whole number, got True"),
    "true for a float": ("run.delay_price = true", "run.delay_price must be a number, got True"),
    "a number for true": ("run.pin = 1", "run.pin must be true or false, got 1"),
    "a text": ('run.seed = "1"', "run.seed must be a whole number, got '1'"),
    "a list": ("engine.scheduling = [1]", "engine.scheduling must be a text, got [1]"),
    "a word": (
        'engine.scheduling = "asink"',
        "engine.scheduling must be one of sync, async; got 'asink'; did you mean async?",
    ),
    "none beside the one": (
        'engine = {scheduling = "async", batches_in_flight = 1}',
        "engine.batches_in_flight must be from 2 to 16, got 1",
    ),
    "too deep": (
        'engine = {scheduling = "async", batches_in_flight = 17}',
        "engine.batches_in_flight must be from 2 to 16, got 17",
    ),
    "half a batch": (
        'engine = {scheduling = "async", batches_in_flight = 2.5}',
        "engine.batches_in_flight must be a whole number, got 2.5",
    ),
    "misspelt": (
        "engine.batches_inflight = 3",
        "unknown key engine.batches_inflight; did you mean engine.batches_in_flight?",
    ),
    "several in sync": (
        "engine.batches_in_flight = 2",
        'engine.batches_in_flight needs engine.scheduling = "async": with "sync" one batch is in '
        "flight at a time; remove it, or change scheduling",
    ),
    "no table": ("engine = 1", "engine must be a table: write [engine] on a line of its own"),
    "run no table": ("run = 1", "run must be a table: write [run] on a line of its own"),
    "quantiles": (
        "workload = {prompt_p50 = 100, prompt_p95 = 50}",
        "workload.prompt_p95 must be at least prompt_p50 = 100, got 50",
    ),
    "no trace": (
        'workload.kind = "trace"',
        'workload.kind = "trace" needs workload.trace, the path of a file',
    ),
    "policy no list": ("policy = 1", "policies are tables in a list: write [[policy]] above each"),
    "no policy": ("policy = []", "policies are tables in a list"),
    "policy no table": ("policy = [1]", "policy[0] must be a table with a preset or a kind, got 1"),
    "neither": ('policy = [{name = "x"}]', "policy[0] needs either preset or kind"),
    "both": (
        'policy = [{preset = "spin", kind = "Park"}]',
        "policy[0] needs either preset or kind",
    ),
    "unknown preset": (
        'policy = [{preset = "vllm"}]',
        "policy[0].preset 'vllm' is unknown; did you mean vllm-1s?; 'shmsim policies' lists all",
    ),
    "unknown kind": (
        'policy = [{preset = "spin"}, {kind = "WakeAhed"}]',
        "policy[1].kind 'WakeAhed' is unknown; did you mean WakeAhead?; 'shmsim policies' lists",
    ),
    "kind no text": ("policy = [{kind = [1]}]", "policy[0].kind must be a text, got [1]"),
    "preset no text": ("policy = [{preset = {}}]", "policy[0].preset must be a text, got {}"),
    "name no text": (
        'policy = [{preset = "spin", name = 3}]',
        "policy[0].name must be a text, got 3",
    ),
    "parameter of a preset": (
        'policy = [{preset = "spin", window = "1us"}]',
        "unknown key policy[0].window; known are preset, name",
    ),
    "unknown parameter": (
        'policy = [{kind = "WakeAhead", gard = "1us"}]',
        "unknown key policy[0].gard; did you mean policy[0].guard?",
    ),
    "what is learnt": (
        'policy = [{kind = "WakeAhead", mean_wait = "1us"}]',
        "unknown key policy[0].mean_wait",
    ),
    "bad parameter": (
        'policy = [{kind = "WakeAhead", smoothing = 2}]',
        "policy[0].smoothing must be from 1e-06 to 1.0, got 2.0",
    ),
    "negative window": (
        'policy = [{kind = "SpinThenPark", window = "-1us"}]',
        "policy[0].window must be from 0 ns to 86400 s, got -1 µs",
    ),
    "no period": (
        'policy = [{kind = "GraceThenPoll", period = "0s"}]',
        "policy[0].period must be from 1 ns to 86400 s, got 0 ns",
    ),
    "same name": (
        'policy = [{preset = "spin"}, {preset = "park", name = "spin"}]',
        "two policies are called 'spin'; give one of them another name",
    ),
}


@pytest.mark.parametrize(("text", "message"), BAD.values(), ids=BAD)
def test_what_is_wrong_is_named_with_what_would_be_right(text, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        parse(text)


def test_how_many_batches_are_in_flight_is_two_in_async_and_one_in_sync_unless_told():
    for text, depth, words in (
        ("", 1, "sync"),
        ('engine.scheduling = "async"', 2, "async"),
        ('engine = {scheduling = "async", batches_in_flight = 3}', 3, "async, 3 in flight"),
    ):
        engine = parse(text).engine
        assert (engine.depth, engine.describe_scheduling()) == (depth, words)


def test_an_error_names_the_file(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text("engine.worker = 1")
    with pytest.raises(ConfigError, match=r"run\.toml: unknown key engine\.worker"):
        load_config(path)


@pytest.mark.parametrize("content", [b"engine = ", b"= 1", b"\xff\xfe", b"[engine]\n[engine]\n"])
def test_what_is_not_toml_is_refused(tmp_path, content):
    path = tmp_path / "run.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"run\.toml is not TOML: "):
        load_config(path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"cannot read .*run\.toml: No such file"):
        load_config(tmp_path / "run.toml")


# Policies from the command line.


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_known_by_its_name(name):
    assert parse_policy(name).name == name
    assert parse_policy(name).policy is PRESETS[name]


@pytest.mark.parametrize("name", POLICIES)
def test_a_policy_without_parameters_has_its_defaults(name):
    assert parse_policy(name).policy == POLICIES[name]()


@given(st.integers(0, 10**6), st.floats(1e-6, 1.0))
def test_parameters_are_written_behind_the_kind(guard_us, smoothing):
    text = f"WakeAhead:guard={guard_us}us, smoothing={smoothing!r}"
    assert parse_policy(text).policy == WakeAhead(guard_us * US, smoothing)
    assert parse_policy(text).name == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("prak", "unknown policy 'prak'; did you mean park or Park?; 'shmsim policies' lists all"),
        ("", "unknown policy ''"),
        ("WakeAhead:guard", "write parameters as key=value, got 'guard'"),
        ("WakeAhead:guard=80", "policy.guard must be a duration with a unit, as in '50us', got 80"),
        ("WakeAhead:guard=", "policy.guard: '' is not a duration"),
        ("WakeAhead:gaurd=80us", "unknown key policy.gaurd; did you mean policy.guard?"),
        ("WakeAhead:smoothing=a", "policy.smoothing must be a number, got 'a'"),
    ],
)
def test_a_policy_written_wrongly_is_refused_with_the_way_out(text, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        parse_policy(text)


def test_no_parameter_reaches_forever():
    with pytest.raises(ConfigError, match="must be from 0 ns to 86400 s"):
        parse_policy(f"SpinThenPark:window={FOREVER_NS}ns")
    assert parse_policy("SpinThenPark:window=86400s").policy == SpinThenPark(86_400 * S)
    assert format_ns(86_400 * S) == "86400 s"
    assert parse_policy("Park").policy == Park()


def test_the_hand_off_is_configured_by_name_and_refused_by_name():
    content = {"handoff": {"doorbell": "eventfd", "slots": 2, "slot_bytes": 8192, "replies": "all"}}
    handoff = parse_config(content).handoff
    assert (handoff.doorbell, handoff.slots, handoff.slot_bytes) == ("eventfd", 2, 8192)
    assert handoff.replies == "all"
    with pytest.raises(ConfigError, match=r"handoff.doorbell must be one of .*; did you mean"):
        parse_config({"handoff": {"doorbell": "eventfds"}})
    with pytest.raises(ConfigError, match=r"handoff.slots must be from 2"):
        parse_config({"handoff": {"slots": 1}})
    with pytest.raises(ConfigError, match=r"handoff.slot_bytes must be 0, or at least 5120 .* 10$"):
        parse_config({"handoff": {"slot_bytes": 10}})
