"""What scheduler and workers say to each other arrives as it was said, and can call nothing."""

import os
import pickle

import pytest

from shmsim.message import (
    decode_batch,
    decode_reply,
    decode_request,
    decode_second_call,
    encode_reply,
    encode_request,
    encode_second_call,
)


class Exploit:
    def __reduce__(self):
        return os.system, ("true",)


@pytest.mark.parametrize("decode", [decode_request, decode_second_call, decode_reply])
def test_a_pickle_that_names_anything_is_refused_before_it_can_call(decode):
    with pytest.raises(pickle.UnpicklingError, match=r"may not ask for \w+\.system"):
        decode(pickle.dumps((Exploit(),)))


def test_every_message_survives_the_way():
    batch = decode_batch(3)
    call = decode_request(encode_request(batch))
    assert (call.step, call.n_decode, len(call.request_ids)) == (batch.step, 3, 3)
    step, request_ids, tokens = decode_reply(encode_reply(call))
    assert (step, tuple(request_ids), len(tokens)) == (call.step, call.request_ids, 3)
    assert decode_second_call(encode_second_call(7)) == 7
