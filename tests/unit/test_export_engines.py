import pytest

from shmsim.export.engines import GENERIC, engine_names, load_engine, parse_engine
from shmsim.export.version import parse_version

ENGINES = [name for name in engine_names() if name != GENERIC]
SETTINGS = [(name, row) for name in ENGINES for row in load_engine(name).settings]
BY_NAME = [f"{name} {row.name}" for name, row in SETTINGS]


def before(version):
    """A version just below, in the form that the engine writes."""
    *head, last = parse_version(version)
    numbers = [*head, last - 1, 999] if last else [head[0] - 1, 999]
    return ("b" if version.startswith("b") else "") + ".".join(map(str, numbers))


@pytest.mark.parametrize(("name", "row"), SETTINGS, ids=BY_NAME)
def test_a_version_that_has_a_setting_gives_it(name, row):
    assert load_engine(name).at(row.since).setting(row.name) == row


@pytest.mark.parametrize(("name", "row"), SETTINGS, ids=BY_NAME)
def test_a_version_from_before_a_setting_refuses_it_and_says_what_to_do(name, row):
    engine = load_engine(name)
    if parse_version(row.since) > parse_version(engine.oldest):
        with pytest.raises(ValueError, match=f"has no {row.name}.*from {row.since}.*leave it out"):
            engine.at(before(row.since)).setting(row.name)
    else:
        with pytest.raises(ValueError, match=f"nobody looked up.*{engine.oldest}.*generic"):
            engine.at(before(row.since))


@pytest.mark.parametrize(
    ("name", "row"), [(n, r) for n, r in SETTINGS if r.until], ids=lambda v: getattr(v, "name", v)
)
def test_a_version_that_lost_a_setting_refuses_it(name, row):
    with pytest.raises(ValueError, match=f"has no {row.name}.*until before {row.until}"):
        load_engine(name).at(row.until).setting(row.name)
    assert load_engine(name).at(before(row.until)).setting(row.name) == row


@pytest.mark.parametrize("name", ENGINES)
def test_what_an_engine_offers_needs_only_settings_of_the_same_version(name):
    engine = load_engine(name)
    rows = [*engine.settings, *engine.offers, *engine.shm]
    versions = {engine.oldest, engine.newest, *(r.since for r in rows), *(r.until for r in rows)}
    for version in versions - {""}:
        there = engine.at(version)
        for offer in there.offers:
            for setting, _ in offer.values:
                assert there.setting(setting)
        if engine.window is None:
            assert sum(not offer.values for offer in there.offers) == 1, version  # the default
        else:
            assert there.setting(engine.window.setting)


def test_every_row_says_where_it_is_written():
    for name in ENGINES:
        engine = load_engine(name)
        for row in (*engine.settings, *engine.offers, *engine.shm):
            assert "https://" in row.source or ".py" in row.source


def test_a_row_without_a_source_is_refused():
    row = {"name": "X", "kind": "env", "unit": "switch", "default": "0", "since": "1"}
    content = {"oldest": "1", "newest": "1", "command": "", "image": "", "waits": ""}
    with pytest.raises(ValueError, match="has no source"):
        parse_engine("toy", {**content, "setting": [{**row, "source": " "}]})


def test_an_offer_that_needs_a_setting_which_is_not_there_yet_is_refused():
    row = {"name": "X", "kind": "env", "unit": "switch", "default": "0", "since": "2"}
    offer = {"policy": "spin", "since": "1", "set": {"X": "1"}, "source": "s"}
    content = {"oldest": "1", "newest": "2", "command": "", "image": "", "waits": ""}
    with pytest.raises(ValueError, match="needs X, which 1 lacks"):
        parse_engine("toy", {**content, "setting": [{**row, "source": "s"}], "offer": [offer]})


@pytest.mark.parametrize(
    ("wrong", "meant"), [("vlm", "vllm"), ("SGLang", "sglang"), ("llamacpp", "llama.cpp")]
)
def test_an_unknown_engine_is_answered_with_the_nearest(wrong, meant):
    with pytest.raises(ValueError, match=f"did you mean {meant}"):
        load_engine(wrong)


def test_an_unknown_setting_is_answered_with_the_nearest():
    with pytest.raises(ValueError, match="did you mean VLLM_SLEEP_WHEN_IDLE"):
        load_engine("vllm").at("0.17.0").setting("VLLM_SLEEP_WHEN_IDEL")


def test_versions_are_compared_by_their_numbers():
    assert parse_version("0.9.2") < parse_version("0.10.0") < parse_version("v0.33")
    assert parse_version("0.33.0rc1") == parse_version("0.33")
    assert parse_version("b3778") < parse_version("b12014")
    with pytest.raises(ValueError, match="no version"):
        parse_version("latest")


def test_a_version_that_came_after_the_table_is_told():
    assert load_engine("vllm").at("0.99.0").is_newer_than_the_table
    assert not load_engine("vllm").at("0.33.0").is_newer_than_the_table


def test_who_has_an_engine_that_is_not_in_a_table_is_told_of_the_generic_one():
    with pytest.raises(ValueError, match=f"'tensorrt-llm'.*'--engine {GENERIC}'"):
        load_engine("tensorrt-llm")
