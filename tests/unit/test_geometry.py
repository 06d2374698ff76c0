"""Which decoder is computed."""

import pytest

from realrun.model.geometry import TINY, check_shares, geometry_of, model_of
from realrun.model.prompts import prompt_tokens
from shmsim.config import DeviceConfig
from shmsim.inputs.catalog import load_model

KEYS = """
layers = 1
hidden = 32
heads = 4
kv_heads = 2
head_dim = 8
ffn = 64
vocab = 100
tied = false
"""


def test_models_have_names():
    assert geometry_of("tiny") == TINY
    assert geometry_of("llama-3.2-1b") == load_model("llama-3.2-1b")
    assert geometry_of(model_of(DeviceConfig(kind="cuda"))).parameters == 1_235_814_400
    assert geometry_of(model_of(DeviceConfig(kind="cpu"))) == TINY
    with pytest.raises(ValueError, match="unknown model 'lama'; did you mean llama-"):
        geometry_of("lama")


def test_a_model_of_ones_own_is_a_file(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(KEYS)
    assert geometry_of(str(path)).heads == 4


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (KEYS.replace("ffn", "fnn"), "unknown: fnn; missing: ffn"),
        (KEYS.replace("layers = 1", "layers = 0"), "layers must be a whole number of at least 1"),
        (KEYS.replace("false", "1"), "tied must be true or false"),
        (KEYS.replace("kv_heads = 2", "kv_heads = 3"), "heads must be a multiple of kv_heads"),
        ("layers =", "is not TOML"),
    ],
    ids=["key", "range", "kind", "groups", "syntax"],
)
def test_a_file_that_is_no_model_is_refused(tmp_path, text, message):
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        geometry_of(str(path))
    with pytest.raises(ValueError, match="cannot read the model"):
        geometry_of(str(tmp_path / "none.toml"))


def test_ranks_that_do_not_divide_a_layer_are_refused():
    check_shares(TINY, 2)
    check_shares(TINY, 4)  # two ranks for each head of keys and values
    with pytest.raises(ValueError, match="3 ranks cannot share 4 heads"):
        check_shares(TINY, 3)


def test_prompts_are_the_same_in_one_piece_and_in_several():
    whole = prompt_tokens("request-7", 0, 50, 512)
    assert (whole[20:] == prompt_tokens("request-7", 20, 30, 512)).all()
    assert (whole >= 0).all()
    assert (whole < 512).all()
    assert (whole != prompt_tokens("request-8", 0, 50, 512)).any()
