"""How long a round of a bare spin takes, in which engines count."""

import pytest

from realrun.bench import round_ns
from realrun.native import IMPLEMENTATION


def test_a_round_takes_some_cycles_and_no_microseconds() -> None:
    if IMPLEMENTATION != "native":
        assert round_ns() is None
        pytest.skip("the C extension is not built: nobody can count rounds")
    measured_ns = round_ns()
    assert measured_ns is not None
    assert 0.2 < measured_ns < 5_000


@pytest.mark.skipif(IMPLEMENTATION != "native", reason="needs the C extension")
def test_what_is_no_number_of_rounds_is_refused() -> None:
    from realrun._native import rounds

    with pytest.raises(TypeError):
        rounds("many")  # type: ignore[arg-type]
    with pytest.raises(OverflowError):
        rounds(1 << 70)
