"""Pictures: what they may be made of, and that what they say can be read."""

import io
import math
import xml.etree.ElementTree as ElementTree
from itertools import combinations, pairwise

import matplotlib as mpl
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from matplotlib.backends.backend_agg import FigureCanvasAgg
from PIL import Image

from shmsim.arena_sizing.payloads import payloads_of
from shmsim.arena_sizing.replay import replay
from shmsim.plots import (
    NARROW,
    WIDE,
    Finalist,
    FrontierPoint,
    Judged,
    LiveRace,
    LoadPoint,
    Prediction,
    QuotaPoint,
    Racer,
    SlotPoint,
    Stack,
    TuningPanel,
    agreement,
    arena_occupancy,
    collapse,
    fallback_by_slots,
    frontier,
    frontier_of_estimates,
    frontier_points,
    gap_distribution,
    inline_svg,
    occupancy_of,
    predicted_and_measured,
    quota_effect,
    race_costs,
    ranged,
    rest_costs,
    stacked,
    stages_met,
    step_timeline,
    tuning,
    wake_latency,
    write_svg,
)
from shmsim.plots.agreements import VERDICT_LOOKS
from shmsim.plots.kinds import KIND_LOOKS
from shmsim.plots.pixels import as_png
from shmsim.plots.style import look, name_of
from shmsim.profile import MachineProfile
from shmsim.records import SliceRow
from shmsim.routing import ArenaPlan, SlotClass
from shmsim.stats.estimate import Estimate
from shmsim.units import FOREVER_NS, MS, US, S
from shmsim.wait import (
    KIND_NAMES,
    SPIN,
    Stage,
    doze_rehearse_spin_park,
    doze_spin_park,
    only,
    then_park,
)
from tests.report_folders import HOSTILE, records_of, table

PLAN = ArenaPlan((SlotClass(32 << 20, 3), SlotClass(96 << 20, 2)), 1 << 20)
GAPS_NS = np.random.default_rng(1).normal(2 * MS, 30 * US, 500).astype(np.int64)


def estimate(value, half=math.nan):
    return Estimate(value, value - half, value + half, 0.95, 5, "replications")


def payloads(n=60, seed=1):
    rng = np.random.default_rng(seed)
    arrival_ns = np.sort(rng.integers(0, 20 * S, n))
    n_bytes = rng.choice([1 << 10, 20 << 20, 90 << 20, 120 << 20], n)
    return payloads_of(arrival_ns, n_bytes, rng.integers(1, 2 * S, n))


def judged(names=("tp1-spin", "tp2-park", "tp2-ahead")):
    verdicts = ("holds", "misses", "cannot tell")
    return [
        Judged(name, 0.02 * i, 0.02 * i - 0.01, 0.02 * i + 0.01, 0.03, verdicts[i % 3])
        for i, name in enumerate(names)
    ]


def with_cores(records):
    steps = records.steps
    for index, name in enumerate(("scheduler", "worker0")):
        records.slices.append(SliceRow(name, index, steps[2].scheduled_ns, steps[2].seen_ns))
    return records


def racers():
    rows = (("spin", 4000, 4000), ("park", 300, 1500), ("rehearse-ahead", 500, -200))
    return [
        Racer(name, estimate(cpu * US, 10 * US), estimate(cost * US, 40 * US))
        for name, cpu, cost in rows
    ]


def tuning_panels():
    """Two latencies, the first with a limit; some of what was searched is far off."""
    searched = [(0.1 * i, 30.0 / i) for i in range(1, 12)]
    names = ("vllm-1s", "park", HOSTILE[0])
    finalists = [
        Finalist(name, estimate(1.0 - 0.4 * i, 0.02), estimate(1.5 * i, 0.3))
        for i, name in enumerate(names)
    ]
    labels = ("TPOT p99, more than the default's (%)", "TTFT, more than the default's (ms)")
    return [
        TuningPanel(label, searched, finalists, [3.0] * (i == 0)) for i, label in enumerate(labels)
    ]


PICTURES = {
    "frontier": lambda w: frontier(frontier_points(table(["spin", "park"]), 1), "title", w),
    "gaps": lambda w: gap_distribution(
        GAPS_NS, doze_rehearse_spin_park(1900 * US, 2200 * US), "title", w
    ),
    "step": lambda w: step_timeline(with_cores(records_of()), 2, "title", w),
    "rests": lambda w: rest_costs(MachineProfile.shipped("vm-2cpu"), w),
    "wake_ups": lambda w: wake_latency(MachineProfile.shipped("vm-2cpu"), "title", w),
    "agreement": lambda w: agreement(judged(), "CPU (points of a core)", "title", w),
    "arena": lambda w: arena_occupancy(occupancy_of(PLAN, payloads()), "title", w),
    "collapse": lambda w: collapse(
        [
            LoadPoint(p, x, estimate(x * MS, 0.1 * MS))
            for p in ("spin", "park")
            for x in (0.5, 1, 2)
        ],
        "title",
        w,
    ),
    "quotas": lambda w: quota_effect(
        [
            QuotaPoint(p, x, estimate(2 * MS / (x or 2), 0.1 * MS), estimate(90 * MS))
            for p in ("spin", "park")
            for x in (0, 0.5, 2.0)
        ],
        "title",
        w,
    ),
    "predictions": lambda w: predicted_and_measured(
        [
            Prediction("sync / spin (fitted)", estimate(1.9 * MS, 0.1 * MS), ranged([2 * MS])),
            Prediction("async", None, ranged([1.7 * MS, 2.1 * MS])),
        ],
        "time per output token (ms)",
        MS,
        "title",
        w,
    ),
    "tuning": lambda w: tuning(tuning_panels(), "park", w),
    "race": lambda w: race_costs(racers(), 10.0, 300 * US, "title", w),
    "stacks": lambda w: stacked(
        [Stack("scheduler", {"waiting": 0.8, "work": 0.2}), Stack("worker0", {"work": 0.9})],
        "cores",
        "title",
        ("a core", 1.0),
        w,
    ),
    "slots": lambda w: fallback_by_slots(
        [SlotPoint(n, estimate(0.3**n, 0.1 * 0.3**n), 0.3**n) for n in (1, 2, 4, 8, 20)],
        1e-3,
        "title",
        w,
    ),
}
every_picture = pytest.mark.parametrize("name", PICTURES)
both_widths = pytest.mark.parametrize("width_in", [WIDE, NARROW])


def texts_of(figure):
    """Every text that is drawn, with its box in pixels."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    renderer = canvas.get_renderer()
    out_of_view = {
        label
        for axes in figure.axes
        for axis in (axes.xaxis, axes.yaxis)
        for tick in (*axis.get_major_ticks(), *axis.get_minor_ticks())
        for label in (tick.label1, tick.label2)
        if not min(axis.get_view_interval()) <= tick.get_loc() <= max(axis.get_view_interval())
    }
    return [
        (text.get_text(), text.get_window_extent(renderer))
        for text in figure.findobj(mpl.text.Text)
        if text.get_visible() and text.get_text().strip() and text not in out_of_view
    ]


def check_texts(figure):
    """No text is cut off, and none lies on another or follows it without a space."""
    texts = texts_of(figure)
    assert texts
    for text, box in texts:
        assert box.x0 >= -1, text
        assert box.x1 <= figure.bbox.x1 + 1, text
        assert box.y0 >= -1, text
        assert box.y1 <= figure.bbox.y1 + 1, text
    for (one, a), (other, b) in combinations(texts, 2):
        shared = min(a.x1, b.x1) - max(a.x0, b.x0), min(a.y1, b.y1) - max(a.y0, b.y0)
        height = min(a.height, b.height)
        is_beside = shared[1] > height / 2
        assert shared[0] < -height / 4 if is_beside else min(shared) <= 1, (one, other)


@every_picture
@both_widths
def test_no_text_is_cut_off_or_lies_on_another(name, width_in):
    figure = PICTURES[name](width_in)
    check_texts(figure)


@every_picture
def test_axes_that_count_time_or_cores_say_the_unit(name):
    told = {
        "frontier": ["(cores)", "(ms)"],
        "gaps": ["(ms)", "(%)"],
        "step": ["(µs)"],
        "rests": ["(µs)", "1\ns"],
        "wake_ups": ["(µs)", "1\ns"],
        "agreement": ["(points of a core)"],
        "arena": ["(s)", "MiB"],
        "collapse": ["(ms)"],
        "quotas": ["(ms)", "(cores)"],
        "predictions": ["(ms)"],
        "tuning": ["(%)", "(ms)", "(cores)"],
        "race": ["(µs of CPU)"],
        "stacks": ["cores"],
        "slots": ["(%)"],
    }
    words = " ".join(text for text, _ in texts_of(PICTURES[name](WIDE)))
    for unit in told[name]:
        assert unit in words


@every_picture
def test_a_picture_in_a_page_is_sound_and_the_same_again(name):
    first, again = (inline_svg(PICTURES[name](WIDE), "a", "A title", "about") for _ in range(2))
    assert first == again
    root = ElementTree.fromstring(first.replace("<svg ", "<svg xmlns='http://x' ", 1))
    ids = [e.get("id") for e in root.iter() if e.get("id")]
    assert len(set(ids)) == len(ids)
    assert all(i.startswith("a-") for i in ids)
    assert root.get("aria-labelledby") == "a-title a-about"
    for element in root.iter():
        for key, value in element.attrib.items():
            if "href" in key:
                assert value[1:] in ids
    assert "<style" not in first  # it would hold for the whole page
    assert "var(--ink" in first


def test_what_is_written_to_a_file_is_plain_svg(tmp_path):
    path = tmp_path / "new" / "a.svg"
    write_svg(PICTURES["agreement"](WIDE), path)
    assert ElementTree.parse(path).getroot().tag.endswith("svg")
    assert "var(" not in path.read_text()


def test_titles_in_a_page_are_escaped():
    svg = inline_svg(PICTURES["agreement"](WIDE), "a", HOSTILE[0], HOSTILE[2])
    root = ElementTree.fromstring(svg)
    assert root[0].text == HOSTILE[0]
    assert root[1].text == HOSTILE[2]


@pytest.mark.parametrize("name", ["", "A", "a b", '"', "1a"])
def test_a_picture_without_a_plain_name_is_refused(name):
    with pytest.raises(ValueError, match="hyphens"):
        inline_svg(PICTURES["agreement"](WIDE), name, "t", "d")


@both_widths
def test_any_name_is_drawn_as_letters(width_in):
    for figure in (
        agreement(judged(HOSTILE), "TPOT (%)", "", width_in),
        frontier(frontier_points(table(HOSTILE), 1), "", width_in),
        collapse([LoadPoint(n, 1, estimate(MS)) for n in HOSTILE], "", width_in),
    ):
        check_texts(figure)
        words = {text for text, _ in texts_of(figure)}
        for name in HOSTILE:
            assert words & {name_of(name, longest) for longest in range(16, 50)}


@given(st.text())
def test_a_shown_name_is_short_and_visible(name):
    shown = name_of(name)
    assert len(shown) <= 30
    assert not shown.startswith("_")
    assert shown.isprintable()


def test_a_grey_print_tells_things_apart():
    looks = [look(i) for i in range(10)]
    assert len({one.marker for one in looks}) == len({one.colour for one in looks}) == 10
    assert len({filling.hatch for filling in KIND_LOOKS.values()}) == len(KIND_NAMES)
    for few in (("holds", "misses", "cannot tell"), ("inside", "outside")):
        assert len({VERDICT_LOOKS[verdict][0] for verdict in few}) == len(few)


def test_the_style_stays_within_its_pictures():
    before = dict(mpl.rcParams)
    for draw in PICTURES.values():
        draw(WIDE)
    assert dict(mpl.rcParams) == before


# Frontier.


def test_a_validation_gives_each_policy_a_point_per_world_with_the_range_of_the_machine():
    points = frontier_points(table(["spin"]), n_workers=2)
    machine, model = points
    assert (machine.world, model.world) == ("machine", "model")
    assert machine.cores.value == pytest.approx(0.5 + 2 * 0.4)
    assert machine.tpot_ns.half_width == pytest.approx(2 * MS * 0.005)
    assert math.isnan(model.tpot_ns.half_width)


def test_estimates_of_a_sweep_keep_their_intervals():
    figures = {
        "scheduler_cores": estimate(0.5, 0.01),
        "worker_cores": estimate(0.25, 0.02),
        "tpot_p50_ns": estimate(2 * MS, US),
    }
    (point,) = frontier_of_estimates({"spin": figures}, n_workers=2)
    assert point.cores.value == pytest.approx(1.0)
    assert point.cores.half_width == pytest.approx(0.01 + 2 * 0.02)
    assert point.tpot_ns == figures["tpot_p50_ns"]
    assert point.world == "model"


def test_the_stairs_join_what_no_other_policy_beats_in_both():
    best = [("park", 0.1, 3.0), ("ahead", 0.2, 2.0), ("spin", 2.0, 1.9)]
    beaten = [("poor", 0.3, 2.5)]
    points = [
        FrontierPoint(n, "machine", estimate(cores), estimate(ms * MS))
        for n, cores, ms in (*beaten, *best)
    ]
    stairs = frontier(points).axes[0].lines[0]
    assert list(zip(*stairs.get_data(), strict=True)) == [(c, ms) for _, c, ms in best]


# Gaps.


@given(
    st.lists(st.integers(-MS, 10 * MS), min_size=1, max_size=50),
    st.integers(0, 5 * MS),
    st.integers(0, 5 * MS),
)
def test_every_event_comes_in_one_stage(gaps_ns, first_ns, more_ns):
    gaps = np.array(gaps_ns, dtype=np.int64)
    for plan in (
        only(SPIN),
        then_park(SPIN, first_ns, 0),
        doze_rehearse_spin_park(first_ns, first_ns + more_ns),
    ):
        spans = stages_met(plan, gaps)
        assert sum(span.share for span in spans) == pytest.approx(1.0)
        assert all(a.until_ns == b.from_ns for a, b in pairwise(spans))


def test_shares_are_those_that_were_counted_by_hand():
    gaps = np.array([10, 20, 30, 40]) * US
    doze, spin, park = stages_met(doze_spin_park(20 * US, 40 * US), gaps)
    assert (doze.share, spin.share, park.share) == (0.25, 0.5, 0.25)
    assert park.until_ns == FOREVER_NS
    (only_doze, *_) = stages_met(doze_spin_park(20 * US, 40 * US), np.array([5 * US]))
    assert only_doze.share == 1.0


def test_a_long_tail_does_not_squeeze_the_waits_and_is_told():
    gaps = np.concatenate([GAPS_NS, np.array([50 * S])])
    figure = gap_distribution(gaps, only(SPIN))
    assert figure.axes[1].get_xlim()[1] < 3
    assert any("later" in text for text, _ in texts_of(figure))


def test_no_wait_is_no_picture():
    with pytest.raises(ValueError, match="no wait"):
        gap_distribution(np.array([], dtype=np.int64), only(SPIN))


# One step.


def test_a_step_shows_every_process_the_device_and_the_cores():
    rows = [
        t.get_text() for t in step_timeline(with_cores(records_of()), 2).axes[0].get_yticklabels()
    ]
    assert rows == ["scheduler", "worker0", "device", "core 0", "core 1"]


def test_a_core_says_who_has_it():
    words = [text for text, _ in texts_of(step_timeline(with_cores(records_of()), 2))]
    assert "scheduler has it" in words
    assert "worker0 has it" in words


def test_the_middle_of_a_long_step_is_left_out_and_said_so():
    figure = step_timeline(records_of(), 5)
    left, right = figure.axes
    assert left.get_xlim()[1] < right.get_xlim()[0]
    assert any("left out" in text for text, _ in texts_of(figure))


@pytest.mark.parametrize("step", [-1, 10_000])
def test_a_step_that_never_was_is_refused(step):
    with pytest.raises(ValueError, match="the run has the steps 0 to"):
        step_timeline(records_of(), step)


# Agreement, arena, load.


def test_an_unknown_verdict_and_no_verdict_are_refused():
    with pytest.raises(ValueError, match="unknown verdict 'perhaps'"):
        agreement([judged()[0]._replace(verdict="perhaps")], "TPOT (%)")
    with pytest.raises(ValueError, match="no prediction"):
        agreement([], "TPOT (%)")
    with pytest.raises(ValueError, match="no point"):
        collapse([])


@given(st.integers(0, 2**32 - 1), st.integers(0, 4), st.integers(1, 4))
def test_an_arena_is_looked_at_as_it_is_counted(seed, n_small, n_large):
    plan = ArenaPlan((SlotClass(32 << 20, n_small), SlotClass(96 << 20, n_large)), 1 << 20)
    given_payloads = payloads(40, seed)
    usage, occupancy = replay(plan, given_payloads), occupancy_of(plan, given_payloads)
    assert len(occupancy.fell_back_ns) == usage.n_fallback
    assert occupancy.held.sum(axis=0).max(initial=0) == usage.n_most_held
    assert np.all(occupancy.held >= 0)
    assert np.all(occupancy.held <= [[n_small], [n_large]])
    assert not occupancy.held[:, -1:].any()
    assert np.all(np.diff(occupancy.at_ns) >= 0)


def test_an_arena_that_nothing_came_to_is_no_picture():
    nothing = payloads_of(*(np.array([], dtype=np.int64) for _ in range(3)))
    with pytest.raises(ValueError, match="no payload"):
        arena_occupancy(occupancy_of(PLAN, nothing))


def test_a_plan_that_lasts_for_ever_is_drawn():
    figure = gap_distribution(GAPS_NS, only(SPIN))
    assert figure.axes[1].get_xlim()[0] < 2 < figure.axes[1].get_xlim()[1]
    assert stages_met(only(SPIN), GAPS_NS) == [(SPIN, 0, FOREVER_NS, 1.0)]
    assert Stage(SPIN, FOREVER_NS, 0) in only(SPIN)


# Race, stacks, predictions, slots, quotas.


def test_who_is_faster_than_the_reference_is_given_time_back():
    figure = race_costs(racers(), 10.0)
    words = [text for text, _ in texts_of(figure)]
    assert {"CPU of a step", "r × time added", "r × time saved"} <= set(words)
    low, high = figure.axes[0].get_xlim()
    assert low < -200 < 4000 < high


def test_a_bound_is_drawn_where_there_is_one_and_only_there():
    for bound_ns, drawn in ((None, False), (300.0 * US, True)):
        words = [text for text, _ in texts_of(race_costs(racers(), 10.0, bound_ns))]
        assert ("bound" in words) == drawn


def shown_of(figure):
    """What the picture of a race says, wherever its layout put it."""
    (axes,) = figure.axes
    return {
        "bars": [bars.get_path().vertices.tolist() for bars in axes.patches],
        "lines": [line.get_xydata().tolist() for line in axes.lines if line.get_visible()],
        "intervals": [s.tolist() for c in axes.collections for s in c.get_segments()],
        "numbers": [(text.get_text(), text.xy) for text in axes.texts],
        "names": [label.get_text() for label in axes.get_yticklabels()],
        "axis": (axes.get_xlim(), axes.get_xlabel(), axes.get_title(loc="left")),
    }


def test_a_race_whose_parts_were_moved_is_the_one_that_is_drawn_anew():
    first = racers()
    costs = (estimate(900 * US, math.inf), estimate(50 * US, 9 * US), estimate(700 * US, 8 * US))
    later = [r._replace(cost_ns=cost) for r, cost in zip(first, costs, strict=True)]
    live = LiveRace([racer.name for racer in first])
    for race, price, bound_ns, title in ((first, 10.0, 300.0 * US, "2 ms"), (later, 2.0, None, "")):
        png = live.png(race, price, bound_ns, title)
        assert shown_of(live.figure) == shown_of(race_costs(race, price, bound_ns, title))
        check_texts(live.figure)
        assert int.from_bytes(png[16:20], "big") == round(WIDE * live.figure.dpi)


def test_a_moved_race_has_the_dots_of_one_that_is_drawn_whole():
    """Nothing that moves is left out, and nothing of the race before is left behind."""
    moved = LiveRace([racer.name for racer in racers()])
    moved.png([r._replace(cost_ns=estimate(5000 * US, 90 * US)) for r in racers()], 10.0, None, "x")
    png = moved.png(racers(), 10.0, 300.0 * US, "2 ms")
    for artist in moved.figure.findobj():
        artist.set_animated(False)
    canvas = FigureCanvasAgg(moved.figure)
    canvas.draw()
    whole = np.asarray(canvas.buffer_rgba()).astype(int)
    dots = (255 * mpl.image.imread(io.BytesIO(png))).round().astype(int)
    n_other = int((np.abs(whole - dots).max(axis=2) > 40).sum())
    assert n_other < 50  # where lines cross in another order; a letter has more


@given(arrays(np.uint8, st.tuples(st.integers(1, 9), st.integers(1, 9), st.just(4))))
def test_pixels_are_read_from_a_png_as_they_were_written(pixels):
    with Image.open(io.BytesIO(as_png(pixels))) as image:
        image.load()  # which checks the sums
        assert image.mode == "RGBA"
        assert (np.asarray(image) == pixels).all()


def test_others_who_race_need_another_picture():
    with pytest.raises(ValueError, match="no racer"):
        LiveRace([])
    with pytest.raises(ValueError, match="is of spin, park; for spin, park, rehearse-ahead make"):
        LiveRace(["spin", "park"]).png(racers(), 10.0)


@settings(max_examples=20)
@given(st.lists(st.floats(0, 10), min_size=1, max_size=8))
def test_the_parts_of_a_bar_follow_each_other(values):
    figure = stacked([Stack("one", {f"p{i}": v for i, v in enumerate(values)})], "cores")
    bars = figure.axes[0].patches
    ends = [bar.get_x() + bar.get_width() for bar in bars]
    assert [bar.get_x() for bar in bars] == pytest.approx([0.0, *ends[:-1]])
    assert ends[-1] == pytest.approx(sum(values))


def test_bars_that_could_not_be_read_are_refused():
    with pytest.raises(ValueError, match="no bar"):
        stacked([], "cores")
    with pytest.raises(ValueError, match="at least 0"):
        stacked([Stack("one", {"waiting": -0.1})], "cores")
    with pytest.raises(ValueError, match="told apart"):
        stacked([Stack("one", {str(i): 1.0 for i in range(9)})], "cores")


def test_runs_become_their_mean_with_the_least_and_the_most():
    assert ranged([1.0, 2.0, 6.0])[:3] == (3.0, 1.0, 6.0)
    assert math.isnan(ranged([1.0]).half_width)
    with pytest.raises(ValueError, match="no run"):
        ranged([])


def test_what_was_only_predicted_or_only_measured_is_drawn_too():
    alone = [Prediction("a", ranged([1.0]), None), Prediction("b", None, None)]
    words = [text for text, _ in texts_of(predicted_and_measured(alone, "cores", 1.0))]
    assert "predicted" in words
    assert not {"measured", "b"} & set(words)
    with pytest.raises(ValueError, match="nothing to draw"):
        predicted_and_measured(alone[1:], "cores", 1.0)


def test_a_share_of_nothing_has_a_place_on_the_axis_and_says_so():
    points = [SlotPoint(1, estimate(0.5, 0.1), 0.5), SlotPoint(9, estimate(0.0, 0.0), 1e-9)]
    figure = fallback_by_slots(points, 1e-3)
    assert figure.axes[0].get_ylim()[0] > 0
    assert any("none" in text for text, _ in texts_of(figure))
    with pytest.raises(ValueError, match="no point"):
        fallback_by_slots([], 1e-3)


def test_without_a_quota_comes_last():
    figure = PICTURES["quotas"](WIDE)
    for axes in figure.axes:
        assert [label.get_text() for label in axes.get_xticklabels()] == ["0.5", "2", "none"]
    with pytest.raises(ValueError, match="no point"):
        quota_effect([])


# In a notebook.


@every_picture
def test_a_notebook_shows_a_picture_sharp_and_at_its_size(name):
    figure = PICTURES[name](WIDE)
    data, size = figure._repr_png_()
    assert data.startswith(b"\x89PNG")
    width = int.from_bytes(data[16:20], "big")  # of the first chunk, IHDR
    assert size["width"] == int(WIDE * figure.dpi)
    assert width == pytest.approx(2 * size["width"], abs=2)
