"""An installed vLLM's own queues, their waits carried out by policy: nothing else changes."""

import importlib
import importlib.util
import inspect
import threading
import time

import pytest

from realrun.vllm import calls, plugin
from realrun.vllm.arms import Arm
from realrun.vllm.beside import PREFIX, SHM
from realrun.vllm.process import Process
from realrun.vllm.trace import INLINE, SEND, WAIT, Trace
from realrun.vllm.traces import read_trace
from shmsim.policies import PRESETS
from shmsim.wait import SCHEDULER_RECV, TYPICAL_COSTS
from tests.vllm.live.queues import EXECUTE, SAMPLE, Crew, Pair, all_serving, serving

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(
        importlib.util.find_spec("vllm") is None, reason="vLLM is not installed here"
    ),
    pytest.mark.filterwarnings("default"),
    pytest.mark.usefixtures("imported"),
]
POLICIES = ["park", "spin", "step-ahead", "wake-ahead", "forks-2ms", "poll-100us"]
PARK = (Arm("park", PRESETS["park"]),)
N = 200


def test_this_vllm_is_as_expected():
    from vllm.distributed.device_communicators import shm_broadcast
    from vllm.v1.executor import multiproc_executor

    from realrun.vllm.facts import objections

    assert objections(shm_broadcast, multiproc_executor) == []


def test_without_the_variables_nothing_of_vllm_is_touched(monkeypatch):
    from vllm.distributed.device_communicators import shm_broadcast as module
    from vllm.v1.executor import multiproc_executor

    classes = [module.MessageQueue, module.SpinCondition, module.ShmRingBuffer]
    classes += [multiproc_executor.MultiprocExecutor, multiproc_executor.WorkerProc]
    before = [dict(vars(c)) for c in classes]
    for name in plugin.TRACE, plugin.POLICY:
        monkeypatch.delenv(name, raising=False)
    plugin.install()
    assert [dict(vars(c)) for c in classes] == before


@pytest.mark.parametrize("name", ["vllm", *POLICIES])
def test_every_message_arrives_once_and_in_order(name):
    arms = () if name == "vllm" else (Arm(name, PRESETS[name]),)
    pair = Pair(arms, arm=len(arms)).joined()
    with serving(pair, n_calls=N) as got:
        for n in range(N):
            pair.calls.enqueue(EXECUTE if n % 2 == 0 else SAMPLE)
            assert pair.replied.dequeue(timeout=20) == ("SUCCESS", n + 1)
    assert [message[0] for message in got] == ["execute_model", "sample_tokens"] * (N // 2)


def test_by_policy_nobody_pings_and_who_spins_is_not_rung_for():
    pair = Pair((Arm("spin", PRESETS["spin"]),), arm=1).joined()
    with serving(pair, n_calls=N):
        for _ in range(N):
            pair.calls.enqueue(SAMPLE)
            pair.replied.dequeue(timeout=20)
    counted = pair.counted(pair.engine)
    assert counted["sent"] == N
    assert counted["pinged"] == counted["vllm_waits"] == counted["overtaken"] == 0
    assert counted["waits"] + counted["at_once"] >= N - 1  # the last is counted with the next


def test_as_vllm_is_it_pings_as_vllm_does():
    pair = Pair().joined()
    with serving(pair, n_calls=N):
        for _ in range(N):
            pair.calls.enqueue(SAMPLE)
            pair.replied.dequeue(timeout=20)
    counted = pair.counted(pair.engine)
    assert counted["pinged"] == counted["sent"] == N
    assert counted["waits"] == 0


def test_a_parked_reader_is_rung_for():
    pair = Pair(PARK, arm=1).joined()
    with serving(pair, work_s=0.01, n_calls=5):
        for _ in range(5):
            pair.calls.enqueue(SAMPLE)
            pair.replied.dequeue(timeout=20)
    assert pair.counted(pair.worker)["rung"] == 5
    assert pair.counted(pair.engine)["rescued"] == 0


def test_a_deadline_ends_a_wait():
    pair = Pair(PARK, arm=1).joined()
    started_s = time.monotonic()
    with pytest.raises(TimeoutError):
        pair.replied.dequeue(timeout=0.3)
    assert time.monotonic() - started_s >= 0.29
    with pytest.raises(TimeoutError):
        pair.replied.dequeue(timeout=-1)
    pair.replies.enqueue("late")
    assert pair.replied.dequeue(timeout=20) == "late"


@pytest.mark.parametrize("name", ["park", "spin", "poll-100us"])
def test_a_shutdown_ends_a_readers_wait(name):
    pair = Pair((Arm(name, PRESETS[name]),), arm=1).joined()
    errors = []

    def read():
        try:
            pair.called.dequeue(indefinite=True)
        except RuntimeError as error:
            errors.append(str(error))

    thread = threading.Thread(target=read)
    thread.start()
    time.sleep(0.2)
    pair.called.shutdown()
    thread.join(20)
    assert errors == ["cancelled"]


def fill(pair):
    for n in range(pair.calls.buffer.max_chunks):
        pair.calls.enqueue(("sample_tokens", (n,), {}, 0))


def test_a_full_ring_lets_its_writer_sleep_until_a_slot_is_released():
    pair = Pair(PARK, arm=1).joined()
    fill(pair)
    thread = threading.Thread(target=lambda: pair.calls.enqueue(("sample_tokens", (10,), {}, 0)))
    cpu_s = time.process_time()
    thread.start()
    time.sleep(0.5)
    assert time.process_time() - cpu_s < 0.25  # vLLM's writer would have taken all of it
    got = [pair.called.dequeue(timeout=20)[1][0] for _ in range(11)]
    thread.join(20)
    assert got == list(range(11))
    assert pair.counted(pair.engine)["slot_waits"] == 1


def test_a_writer_has_a_deadline_too():
    pair = Pair(PARK, arm=1).joined()
    fill(pair)
    with pytest.raises(TimeoutError):
        pair.calls.enqueue(SAMPLE, timeout=0.2)
    assert [pair.called.dequeue(timeout=20)[1][0] for _ in range(10)] == list(range(10))
    pair.calls.enqueue(SAMPLE)
    assert pair.called.dequeue(timeout=20) == SAMPLE


def test_a_shutdown_ends_a_writers_wait_as_vllms_would_not():
    pair = Pair(PARK, arm=1).joined()
    fill(pair)
    errors = []

    def write():
        try:
            pair.calls.enqueue(SAMPLE)
        except RuntimeError as error:
            errors.append(str(error))

    thread = threading.Thread(target=write)
    thread.start()
    time.sleep(0.2)
    pair.calls.shutdown()
    thread.join(20)
    assert errors == ["cancelled"]


@pytest.mark.parametrize("n_bytes", [60_000, 70_000, 3_000_000])
def test_long_messages_take_vllms_other_route(n_bytes):
    pair = Pair(PARK, arm=1).joined()
    message = ("sample_tokens", (b"x" * n_bytes,), {}, 0)
    with serving(pair, n_calls=3) as got:
        for _ in range(3):
            pair.calls.enqueue(message)
            pair.replied.dequeue(timeout=20)
    assert got == [message] * 3


@pytest.mark.parametrize("arms", [(), PARK])
def test_a_reader_that_raises_releases_its_slot(arms):
    pair = Pair(arms, arm=len(arms)).joined()
    for n in range(15):
        pair.calls.enqueue(("sample_tokens", (n,), {}, 0))
        with pytest.raises(ZeroDivisionError), pair.called.acquire_read(timeout=20):
            raise ZeroDivisionError
    pair.calls.enqueue(SAMPLE)
    assert pair.called.dequeue(timeout=20) == SAMPLE


@pytest.mark.parametrize(("before", "after"), [(0, 1), (1, 0)])
def test_who_sleeps_in_one_way_is_woken_when_the_other_is_in_force(before, after):
    arms = (Arm("park", PRESETS["park"]), Arm("window=0ms", window_s=0.0))
    pair = Pair(arms, arm=2 if before == 0 else 1).joined()
    pair.calls.enqueue(SAMPLE)
    pair.called.dequeue(timeout=20)
    got = []
    thread = threading.Thread(target=lambda: got.append(pair.called.dequeue(indefinite=True)))
    thread.start()
    time.sleep(0.5)
    pair.control.arm = 1 if after == 1 else 2
    started_s = time.monotonic()
    pair.calls.enqueue(SAMPLE)
    thread.join(20)
    assert got == [SAMPLE]
    assert time.monotonic() - started_s < 4  # not by vLLM's recheck after 5 s


def test_an_engine_whose_worker_takes_no_part_is_left_alone():
    pair = Pair(PARK, arm=1)
    with pytest.raises(ValueError, match="not every worker"):
        pair.join_engine()
    pair.calls.enqueue(SAMPLE)
    assert pair.called.dequeue(timeout=20) == SAMPLE
    assert pair.counted(pair.engine)["sent"] == 0


def test_who_only_records_is_left_alone_by_an_engine_with_policies():
    pair = Pair(PARK, arm=1)
    pair.worker = Process((Arm("vllm"),), TYPICAL_COSTS, pair.control, None, None)
    pair.join_worker()
    with pytest.raises(ValueError, match="all need the same variables"):
        pair.join_engine()
    pair.calls.enqueue(SAMPLE)
    assert pair.called.dequeue(timeout=20) == SAMPLE


def test_without_policies_vllms_conditions_stay_as_they_are():
    pair = Pair()
    before = [type(queue._spin_condition) for queue in (pair.calls, pair.called)]
    pair.joined()
    assert [type(queue._spin_condition) for queue in (pair.calls, pair.called)] == before


def test_a_worker_whose_engine_takes_no_part_is_left_alone():
    pair = Pair(PARK, arm=1)
    pair.join_worker()
    for _ in range(25):
        pair.calls.enqueue(SAMPLE)
        assert pair.called.dequeue(timeout=20) == SAMPLE
    assert pair.counted(pair.worker)["waits"] == 0


def test_a_read_that_began_before_the_go_counts_all_the_same():
    pair = Pair(PARK, arm=1)
    pair.join_worker()
    with serving(pair, n_calls=30):
        time.sleep(0.2)  # the first read has begun
        pair.join_engine()
        for n in range(30):
            pair.calls.enqueue(SAMPLE)
            assert pair.replied.dequeue(timeout=20) == ("SUCCESS", n + 1)
    assert pair.counted(pair.worker)["overtaken"] == 0
    assert pair.counted(pair.worker)["waits"] > 0


def test_a_ring_that_fell_out_of_step_is_given_up_and_vllm_goes_on():
    pair = Pair(PARK, arm=1).joined()
    with serving(pair, n_calls=40):
        for n in range(40):
            if n == 20:
                for queue in pair.calls, pair.replies:
                    queue.realrun_end._beside.give_up()
                started_s = time.monotonic()
            pair.calls.enqueue(SAMPLE)
            assert pair.replied.dequeue(timeout=20) == ("SUCCESS", n + 1)
    # The worker's wait had begun by policy: vLLM's recheck after 5 s ends it, once.
    assert time.monotonic() - started_s < 9


def test_a_writer_that_raises_has_published_nothing():
    pair = Pair(PARK, arm=1).joined()
    with pytest.raises(ZeroDivisionError), pair.calls.acquire_write():
        raise ZeroDivisionError
    pair.calls.enqueue(SAMPLE)
    assert pair.called.dequeue(timeout=20) == SAMPLE
    assert pair.counted(pair.worker)["overtaken"] == 0


def test_nothing_is_left_in_shared_memory():
    before = set(SHM.glob(f"{PREFIX}*"))
    Pair(PARK, arm=1).joined()
    assert set(SHM.glob(f"{PREFIX}*")) == before


@pytest.mark.parametrize("arms", [(), PARK])
def test_every_wait_and_message_is_kept(arms, tmp_path):
    trace = Trace(tmp_path, {"vllm": "", "arms": []}, n_rows=1000)
    pair = Pair(arms, arm=len(arms), trace=trace).joined()
    with serving(pair, n_calls=20):
        for n in range(20):
            pair.calls.enqueue(EXECUTE if n % 2 == 0 else SAMPLE)
            pair.replied.dequeue(timeout=20)
    rows = read_trace(trace.path).rows
    sends, waits = rows[rows["kind"] == SEND], rows[rows["kind"] == WAIT]
    assert len(sends) == 40
    assert 38 <= len(waits) <= 40  # each reader keeps its last with the next
    assert (waits["seen_ns"] >= waits["published_ns"]).all()
    assert (waits["ended_ns"] >= waits["seen_ns"]).all()
    assert set(waits["step"]) == set(range(10))
    assert (sends["n_bytes"] > 10).all()


def test_thousands_of_hand_offs_with_gaps_of_all_lengths_never_stall():
    pair = Pair((Arm("x", PRESETS["forks-2ms"]),), arm=1).joined()
    worst_s = 0.0
    with serving(pair, n_calls=3000):
        for n in range(3000):
            time.sleep((n % 7) * 0.0004 if n % 3 == 0 else 0)
            started_s = time.monotonic()
            pair.calls.enqueue(SAMPLE)
            pair.replied.dequeue(timeout=20)
            worst_s = max(worst_s, time.monotonic() - started_s)
    assert pair.counted(pair.engine)["rescued"] == pair.counted(pair.worker)["rescued"] == 0
    assert worst_s < 4  # a lost wake-up would show as 5 s


def to_rank(message, rank):
    """The same call, answered by that worker; None: by all."""
    return (*message[:3], rank)


@pytest.mark.parametrize("name", ["vllm", *POLICIES])
def test_two_readers_of_one_queue_each_get_every_message(name):
    arms = () if name == "vllm" else (Arm(name, PRESETS[name]),)
    crew = Crew(arms, arm=len(arms)).joined()
    sent = [to_rank(EXECUTE if n % 2 == 0 else SAMPLE, None) for n in range(N)]
    with all_serving(crew, n_calls=N) as got:
        for n, message in enumerate(sent):
            crew.calls.enqueue(message)
            for replied in crew.replied:
                assert replied.dequeue(timeout=20) == ("SUCCESS", n + 1)
    names = [message[0] for message in sent]
    assert [[message[0] for message in of_rank] for of_rank in got] == [names, names]
    for process in crew.engine, *crew.workers:
        counted = process.counters()
        read = counted.waits if arms else counted.vllm_waits
        assert read + counted.at_once >= N - 1  # the last is counted with the next
        assert (counted.vllm_waits if arms else counted.waits) == counted.overtaken == 0
        assert counted.pinged == (0 if arms else counted.sent)


def test_a_slot_is_free_only_once_both_readers_are_done_with_it():
    crew = Crew(PARK, arm=1).joined()
    first, second = crew.called
    n_slots = crew.calls.buffer.max_chunks
    sent = [("sample_tokens", (n,), {}, None) for n in range(n_slots + 1)]
    for message in sent[:-1]:
        crew.calls.enqueue(message)
    assert [first.dequeue(timeout=20) for _ in range(n_slots)] == sent[:-1]
    thread = threading.Thread(target=lambda: crew.calls.enqueue(sent[-1]))
    thread.start()
    thread.join(0.3)
    assert thread.is_alive()
    assert second.dequeue(timeout=20) == sent[0]
    thread.join(20)
    assert not thread.is_alive()
    assert [second.dequeue(timeout=20) for _ in range(n_slots)] == sent[1:]
    assert first.dequeue(timeout=20) == sent[-1]
    assert crew.engine.counters().slot_waits == 1


@pytest.mark.parametrize("arms", [(), PARK])
def test_replies_to_calls_in_flight_are_each_kept_with_their_own_call(arms, tmp_path):
    trace = Trace(tmp_path, {"vllm": "", "arms": []}, n_rows=1000)
    crew = Crew(arms, arm=len(arms), trace=trace).joined()
    # Two steps and more ahead; the first worker answers to the second call of each step only.
    sent = [to_rank(EXECUTE, 1), to_rank(SAMPLE, None)] * 3
    n_replies = 3, 6
    with all_serving(crew, n_calls=len(sent) + 1):
        for message in sent:
            crew.calls.enqueue(message)
        for replied, n in zip(crew.replied, n_replies, strict=True):
            for _ in range(n):
                replied.dequeue(timeout=20)
        crew.calls.enqueue(to_rank(SAMPLE, None))  # what was read is kept with the next read
        for replied in crew.replied:
            replied.dequeue(timeout=20)
    rows = read_trace(trace.path).rows
    rows = rows[(rows["kind"] == WAIT) & (rows["site"] == SCHEDULER_RECV)]
    kept = [
        [(int(row["step"]), int(row["call"])) for row in rows[rows["rank"] == rank]]
        for rank in (0, 1)
    ]
    second_calls = [(step, calls.SAMPLE) for step in range(3)]
    assert kept[0] == second_calls
    assert kept[1] == sorted([*second_calls, *((step, calls.EXECUTE) for step in range(3))])


@pytest.mark.parametrize("arms", [(), PARK])
def test_a_reader_on_another_machine_gets_what_the_local_one_gets(arms):
    crew = Crew(arms, arm=len(arms), n_local=1, n_remote=1).joined()
    with all_serving(crew, n_calls=N) as got:
        for n in range(N):
            crew.calls.enqueue(to_rank(EXECUTE if n % 2 == 0 else SAMPLE, None))
            for replied in crew.replied:
                assert replied.dequeue(timeout=20) == ("SUCCESS", n + 1)
    assert [m[0] for m in got[0]] == [m[0] for m in got[1]]
    local, remote = (worker.counters() for worker in crew.workers)
    assert (local.waits if arms else local.vllm_waits) + local.at_once >= N - 1
    assert not any(remote[3:])  # it is left alone
    assert not crew.engine._owed[1]  # nor noted what it owes, which nobody would strike out


@pytest.mark.parametrize("arms", [(), PARK])
def test_large_tensors_take_vllms_arena(arms, tmp_path):
    import torch
    from vllm.distributed.device_communicators.shm_broadcast import MessageQueue

    if "enable_shm_tensor_arena" not in inspect.signature(MessageQueue).parameters:
        pytest.skip("this vLLM has no tensor arena")
    trace = Trace(tmp_path, {"vllm": "", "arms": []}, n_rows=1000)
    pair = Pair(arms, arm=len(arms), trace=trace, enable_shm_tensor_arena=True).joined()
    for n in range(20):  # more than the arena has slots, so they are released as well
        tensor = torch.full((9 << 20,), n, dtype=torch.uint8)
        pair.calls.enqueue(("sample_tokens", (tensor,), {}, 0))
        got = pair.called.dequeue(timeout=20)
        assert torch.equal(got[1][0], tensor)
        del got
    rows = read_trace(trace.path).rows
    sends = rows[rows["kind"] == SEND]
    assert len(sends) == 20
    assert set(sends["route"]) == {INLINE}
    assert sends["n_bytes"].max() < 10_000  # what is left in the slot


@pytest.fixture
def warned(monkeypatch):
    """What vLLM says of long waits, which are those of 0.1 s here."""
    module = importlib.import_module("vllm.distributed.device_communicators.shm_broadcast")
    said = []

    def info(message, *values, **_):
        if message == module.LONG_WAIT_TIME_LOG_MSG:
            said.append(values)

    monkeypatch.setattr(module, "VLLM_RINGBUFFER_WARNING_INTERVAL", 0.1)
    monkeypatch.setattr(module.logger, "info", info)
    return said


@pytest.mark.parametrize("arms", [(), PARK])
def test_who_waits_long_for_a_message_warns_as_vllm_does(arms, warned):
    pair = Pair(arms, arm=len(arms)).joined()
    with pytest.raises(TimeoutError):
        pair.replied.dequeue(timeout=0.55)
    assert 2 <= len(warned) <= 5
    pair.replies.enqueue("late")
    assert pair.replied.dequeue(timeout=20) == "late"


@pytest.mark.parametrize("arms", [(), PARK])
def test_who_waits_long_for_a_slot_warns_as_vllm_does(arms, warned):
    pair = Pair(arms, arm=len(arms)).joined()
    fill(pair)
    with pytest.raises(TimeoutError):
        pair.calls.enqueue(SAMPLE, timeout=0.55)
    assert 2 <= len(warned) <= 5
    assert pair.called.dequeue(timeout=20)[1] == (0,)
    pair.calls.enqueue(SAMPLE, timeout=20)
