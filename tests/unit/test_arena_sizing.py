import re
import tomllib
from itertools import product

import numpy as np
import pytest
from typer.testing import CliRunner

from shmsim.arena_sizing.copies import copies_of
from shmsim.arena_sizing.draw import draw_payloads
from shmsim.arena_sizing.payloads import payloads_of, read_payloads
from shmsim.arena_sizing.pixels import (
    image_bytes,
    image_tokens,
    video_bytes,
    video_frames,
    video_tokens,
)
from shmsim.arena_sizing.replay import replay, reserved_bytes
from shmsim.arena_sizing.retention import HOLDS, CopyTime, Retention, retention_of
from shmsim.arena_sizing.search import smallest_arena
from shmsim.arena_sizing.steps import payloads_of_steps
from shmsim.arena_sizing.workloads import WORKLOADS, named_workload
from shmsim.cli import app
from shmsim.config import PayloadConfig, parse_config
from shmsim.profile import MachineProfile
from shmsim.records import StepRow
from shmsim.routing import MIB, VLLM_ARENA, ArenaPlan, SlotClass
from shmsim.steptime import StepTime
from shmsim.units import MS, US, S

H200 = CopyTime.of(MachineProfile.shipped("h200"), "registered")
QUICK = Retention("copied", 2048, 10 * MS, 10 * MS, 20 * US)


def payloads(*rows):
    """Rows of (arrival, bytes, hold)."""
    table = np.array(rows, dtype=np.int64).reshape(-1, 3)
    return payloads_of(table[:, 0], table[:, 1], table[:, 2])


def quiet(plan):
    """Tell nobody what is tried."""


# Sizes.


@pytest.mark.parametrize(("side", "reported_mb"), [(1024, 23), (2048, 96), (3072, 213)])
def test_images_are_as_large_as_vllms_authors_report(side, reported_mb):
    # vllm-project/vllm#51207, Qwen3-VL.
    assert image_bytes(side * side) / MIB == pytest.approx(reported_mb, rel=0.05)


def test_an_image_is_24_bytes_a_pixel_and_a_token_for_each_32_by_32():
    assert image_bytes(1024 * 1024) == 24 * 1024 * 1024
    assert image_tokens(1024 * 1024) == 1024
    assert image_bytes(10**9) == image_bytes(16384 * 28 * 28)  # scaled down to that


def test_a_video_is_two_frames_a_second_of_600_000_pixels_until_its_pixels_run_out():
    assert [video_frames(s) for s in (1, 10, 30, 10_000)] == [4, 20, 60, 768]
    assert video_bytes(10, 1280 * 720) == pytest.approx(20 * 768 * 28 * 28 * 12, rel=0.01)
    assert video_tokens(10, 1280 * 720) == pytest.approx(10 * 768 * 28 * 28 / 1024, rel=0.01)
    longest = 0.9 * 128_000 * 28 * 28 * 12
    assert video_bytes(384, 1280 * 720) == pytest.approx(longest, rel=0.01)


def test_copies_beyond_the_largest_that_was_measured_take_in_proportion():
    assert H200.ns(64 * MIB) == 1_310_523
    assert H200.ns(256 * MIB) == pytest.approx(4 * 1_310_523, abs=1)
    assert H200.ns(0) == 15_712
    assert H200.ns(32 * MIB) == pytest.approx(335_714 + (1_310_523 - 335_714) / 3, abs=1)


def test_a_profile_without_a_device_says_what_it_lacks():
    with pytest.raises(ValueError, match=r"does not know.*h2d_registered.*-p h200"):
        CopyTime.of(MachineProfile.shipped("vm-2cpu"), "registered")


def test_a_slot_is_held_for_the_copy_the_chunks_or_the_request():
    law = StepTime(2 * MS, 0, 5 * US)
    held = {until: retention_of(until, law, 100, 8).hold_ns(1 * MS, 250, 30) for until in HOLDS}
    assert held["copied"] == 1 * MS + 2 * MS + 100 * 5 * US
    assert held["prefilled"] == 1 * MS + 3 * 2 * MS + 250 * 5 * US
    assert held["finished"] == held["prefilled"] + 30 * 2 * MS
    with pytest.raises(ValueError, match="copied, prefilled, finished; got 'for ever'"):
        retention_of("for ever", law, 100, 8)


# Payloads.


def test_payloads_out_of_order_are_refused():
    with pytest.raises(ValueError, match="number 1 arrives at 5 ns, before the one before"):
        payloads((9, 1, 1), (5, 1, 1))
    with pytest.raises(ValueError, match="at least 1 ns, got 0 ns"):
        payloads((1, 1, 0))


def test_a_file_of_payloads_is_read_with_and_without_holds(tmp_path):
    path = tmp_path / "p.csv"
    path.write_text("arrival_ns,bytes,hold_ns\n1,2,3\n4,5,6\n")
    table = read_payloads(path)
    assert [list(column) for column in table] == [[1, 4], [2, 5], [3, 6]]
    path.write_text("bytes,arrival_ns\n2,1\n")
    assert read_payloads(path).hold_ns is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("arrival,bytes\n1,2\n", "lacks the column arrival_ns"),
        ("arrival_ns,bytes\n", "holds no payload"),
        ("arrival_ns,bytes\n1,2\n3,4 MiB\n", "line 3: needs whole numbers.*'4 MiB'"),
        ("arrival_ns,bytes\n1\n", "line 2: needs whole numbers"),
    ],
)
def test_a_file_that_is_wrong_is_told_where(tmp_path, text, said):
    path = tmp_path / "p.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=said):
        read_payloads(path)


def test_named_workloads_come_at_their_rate_with_their_sizes():
    n = 4_000
    for name, workload in WORKLOADS.items():
        drawn = draw_payloads(workload, n, 0, H200, QUICK, 1)
        rate = (n - 1) / (drawn.span_ns / S)
        assert rate == pytest.approx(workload.rate_per_s, rel=4 / np.sqrt(n)), name
    assert draw_payloads(WORKLOADS["text"], n, 0, H200, QUICK, 1).of_at_least(MIB).n == 0
    one = draw_payloads(WORKLOADS["one-image"], n, 0, H200, QUICK, 1)
    assert set(one.n_bytes.tolist()) == {24 * MIB}
    photos = draw_payloads(WORKLOADS["photos"], n, 0, H200, QUICK, 1)
    p50, p95 = np.quantile(photos.n_bytes, (0.5, 0.95)) / 24e6
    assert p50 == pytest.approx(1.0, rel=0.1)
    assert p95 == pytest.approx(8.0, rel=0.2)


def test_the_same_seed_gives_the_same_payloads_and_another_gives_others():
    first, again, other = (
        draw_payloads(WORKLOADS["photos"], 200, 0, H200, QUICK, seed) for seed in (1, 1, 2)
    )
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not np.array_equal(first.n_bytes, other.n_bytes)


def test_an_unknown_workload_is_answered_with_the_nearest():
    with pytest.raises(ValueError, match="did you mean one-image"):
        named_workload("one_image")


def test_the_copy_of_a_step_lands_after_what_came_before_on_the_device():
    copy = CopyTime((0.0, 100.0), (5.0, 25.0), "toy")
    steps = [
        StepRow(0, 0, 7, 0, 10, 20, 300, 310, 320),
        StepRow(1, 1, 0, 30, 40, 50, 600, 610, 620),
        StepRow(2, 1, 3, 630, 640, 650, 700, 710, 720),
    ]
    config = PayloadConfig(bytes_per_prefill_token=10)
    found = payloads_of_steps(steps, config, copy)
    assert found.arrival_ns.tolist() == [10, 640]  # the second carries nothing
    assert found.n_bytes.tolist() == [70, 30]
    assert found.hold_ns.tolist() == [20 + 19 - 10, 650 + 11 - 640]
    busy = payloads_of_steps(steps[:2], PayloadConfig(bytes_per_step=50), copy)
    assert busy.hold_ns.tolist() == [20 + 15 - 10, 300 + 15 - 40]
    without = payloads_of_steps(steps[:2], PayloadConfig(bytes_per_step=50), None)
    assert without.hold_ns.tolist() == [10, 10]


# The arena.


def test_who_comes_while_all_slots_are_taken_falls_back_and_a_slot_that_comes_free_serves():
    plan = ArenaPlan((SlotClass(10, 1),), 5)
    usage = replay(plan, payloads((0, 8, 100), (50, 8, 10), (100, 6, 1), (200, 4, 1), (300, 11, 1)))
    assert (usage.n, usage.n_diverted, usage.n_fallback, usage.n_too_large) == (5, 4, 2, 1)
    assert (usage.arena_bytes, usage.fallback_bytes, usage.inline_bytes) == (14, 19, 4)
    assert (usage.reserved_bytes, usage.touched_bytes, usage.n_most_held) == (10, 8, 1)


def test_a_larger_slot_takes_what_the_smaller_ones_have_no_room_for():
    plan = ArenaPlan((SlotClass(10, 1), SlotClass(100, 1)), 1)
    usage = replay(plan, payloads((0, 9, 50), (1, 9, 50), (2, 9, 50), (3, 90, 50)))
    assert usage.n_fallback == 2
    assert usage.n_too_large == 0
    assert usage.touched_bytes == 18


def test_touched_memory_is_that_of_the_slots_ever_used():
    rows = [(1_000 * i, 24 * MIB, 10) for i in range(50)]
    usage = replay(VLLM_ARENA, payloads(*rows))
    assert usage.reserved_bytes == 2048 * MIB
    assert usage.touched_bytes == 24 * MIB


def test_copies_are_one_for_all_readers_by_the_arena_and_two_for_each_by_socket():
    plan = ArenaPlan((SlotClass(10, 1),), 5)
    usage = replay(plan, payloads((0, 8, 100), (50, 8, 10), (200, 4, 1)))
    assert copies_of(usage, 3, by_socket=True) == (8 + 6 * 12, 6 * 20)
    assert copies_of(usage, 3, by_socket=False) == (8 + 4 * 12, 4 * 20)


# The search.


def test_no_payload_needs_no_arena():
    found = smallest_arena(payloads((0, 100, 1)), 0.01, MIB, 2, quiet)
    assert found.plan == ArenaPlan((), MIB)
    assert found.usage.reserved_bytes == 0


@pytest.fixture(scope="module")
def photos():
    return draw_payloads(WORKLOADS["photos"], 5_000, 40.0, H200, QUICK, 3)


def test_the_arena_found_keeps_the_probability_and_none_of_its_slots_can_go(photos):
    found = smallest_arena(photos, 0.01, 8 * MIB, 2, quiet)
    assert found.usage.fallback.high <= 0.01
    assert found.usage == replay(found.plan, photos)
    for index, (size, count) in enumerate(found.plan.classes):
        others = [c for i, c in enumerate(found.plan.classes) if i != index]
        fewer = sorted([*others, SlotClass(size, count - 1)] if count > 1 else others)
        if fewer:
            less = replay(ArenaPlan(tuple(fewer), 8 * MIB), photos)
            assert less.fallback.high > 0.01


def test_no_arena_of_the_same_sizes_is_smaller_than_the_one_found():
    rng = np.random.default_rng(2)
    n, sizes = 2_000, np.array([8, 32, 128]) * MIB
    mixed = payloads_of(
        np.cumsum(rng.exponential(10 * MS, n)).astype(np.int64),
        rng.choice(sizes, n, p=[0.7, 0.2, 0.1]),
        rng.integers(1 * MS, 30 * MS, n),
    )
    found = smallest_arena(mixed, 0.02, 8 * MIB, 2, quiet).usage.reserved_bytes
    for small, counts in product((8, 32), product(range(1, 9), range(1, 5))):
        classes = (SlotClass(small * MIB, counts[0]), SlotClass(128 * MIB, counts[1]))
        plan = ArenaPlan(classes, 8 * MIB)
        if reserved_bytes(plan) < found:
            assert replay(plan, mixed).fallback.high > 0.02, plan


def test_a_lower_probability_and_fewer_sizes_never_need_less_memory(photos):
    sizes = [reserved_bytes(smallest_arena(photos, p, 8 * MIB, 2, quiet).plan) for p in (0.1, 0.01)]
    assert sizes == sorted(sizes)
    one = smallest_arena(photos, 0.01, 8 * MIB, 1, quiet)
    assert reserved_bytes(one.plan) >= sizes[1]


def test_a_higher_threshold_sends_fewer_payloads_to_the_arena(photos):
    low, high = (smallest_arena(photos, 0.01, t * MIB, 2, quiet).usage for t in (8, 64))
    assert low.n_diverted > high.n_diverted
    assert low.inline_bytes < high.inline_bytes


def test_too_few_payloads_to_tell_a_probability_are_refused(photos):
    with pytest.raises(ValueError, match=r"cannot tell a probability of 1e-05.*at least 370001"):
        smallest_arena(photos, 1e-5, 8 * MIB, 2, quiet)
    with pytest.raises(ValueError, match="above 0 and below 1, got 0"):
        smallest_arena(photos, 0.0, 8 * MIB, 2, quiet)


# The command.


def run(*words):
    return CliRunner().invoke(app, ["arena", *words])


def test_the_command_gives_a_config_that_can_be_read():
    found = run("-w", "one-image", "--count", "5000", "--probability", "0.01", "--rate", "50")
    assert found.exit_code == 0, found.stderr
    text = found.stdout[found.stdout.index("[payload]") :]
    config = parse_config(tomllib.loads(text))
    assert config.payload.arena[0].slot_bytes == 24 * MIB
    assert re.search(r"vLLM\s+2048", found.stdout)
    assert "8\u00a0x\u00a0256\u00a0MiB" in found.stdout


def test_the_command_judges_the_arena_of_a_config_on_its_own_steps(tmp_path):
    path = tmp_path / "c.toml"
    path.write_text(
        "[workload]\nrequests = 40\nprompt_p50 = 100\nprompt_p95 = 100\n"
        "output_p50 = 2\noutput_p95 = 2\n"
        "[payload]\nbytes_per_prefill_token = 1048576\nroutes = 'all-shm'\nmemory = 'registered'\n"
        "arena = [{ slot_bytes = 1073741824, slots = 3 }]\n"
    )
    costs = run(str(path), "--probability", "0.5")
    assert costs.exit_code == 0, costs.stderr
    rows = re.findall(r"(config|smallest)\s.*\n\s*(\d+)\u00a0x", costs.stdout)
    assert rows == [("config", "3"), ("smallest", "1")]


def test_the_command_compares_thresholds():
    thresholds = ("--divert", "8", "--divert", "64")
    found = run("-w", "photos", "--count", "4000", "--probability", "0.02", *thresholds)
    assert found.exit_code == 0, found.stderr
    rows = re.findall(r"MiB\s+(8|64)\s+(\d+)\s", found.stdout.replace("\u00a0", " "))
    assert [int(threshold) for threshold, _ in rows] == [8, 64]
    assert int(rows[0][1]) > int(rows[1][1])  # fewer payloads are as large


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("-w", "txt"), "did you mean text"),
        ((), "nothing is handed over: give --workload or --payloads"),
        (("-w", "text", "--records", "x"), "give one of --workload"),
        (("-w", "photos", "--count", "100"), "cannot tell a probability"),
        (("-w", "photos", "-p", "vm-2cpu"), "-p h200"),
        (("-w", "photos", "--hold", "long"), "copied, prefilled, finished"),
        (("-w", "photos", "--divert", "0"), "at least a byte"),
    ],
)
def test_the_command_explains_what_is_wrong(words, said):
    found = run(*words)
    assert found.exit_code == 2
    assert said in found.stderr.replace("\n", " ")
