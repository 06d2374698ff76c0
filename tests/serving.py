"""Calls to a device, and what it says to them."""

import time

from shmsim.message import CallOne

N_STEPS = 12


def calls():
    """Two prompts, one of them in two chunks, then both decode; a third comes in between."""
    yield CallOne(0, ("a", "b"), (5, 20), 0, 25, 0)
    yield CallOne(1, ("a", "b"), (1, 7), 1, 7, 5)
    for step in range(2, 6):
        yield CallOne(step, ("a", "b"), (1, 1), 2, 0, 40)
    yield CallOne(6, ("a", "b", "c"), (1, 1, 9), 2, 9, 40)
    for step in range(7, N_STEPS):
        yield CallOne(step, ("a", "c"), (1, 1), 2, 0, 40)


def served(device, depth=1):
    """Tokens of all steps, with so many in flight."""
    found, in_flight = [], []
    for call in calls():
        device.load(call)
        in_flight.append(device.launch(call, is_warm_up=False))
        if len(in_flight) == depth:
            found.append(finish(device, in_flight.pop(0)))
    return found + [finish(device, step) for step in in_flight]


def finish(device, step):
    """Wait for a step; its tokens."""
    launched_ns, done_ns = device.wait(step)
    assert done_ns <= time.monotonic_ns()
    assert launched_ns <= time.monotonic_ns()
    tokens = device.outputs(step)
    for waiter in device.waiters:
        waiter.learn()
    return tokens
