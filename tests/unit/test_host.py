"""What tells a profile from the box it is used on."""

from realrun.host import IDENTITY, differing_facts

HERE = {name: f"this {name}" for name in IDENTITY}


def test_a_profile_of_this_box_differs_in_nothing():
    assert differing_facts(HERE, HERE) == []


def test_what_differs_is_told_and_what_is_not_said_is_named():
    first, second, *others = IDENTITY
    profile = {name: HERE[name] for name in others} | {first: "another"}
    told, unsaid = differing_facts(profile, HERE)
    assert told == f"{first}: profile 'another', here 'this {first}'"
    assert unsaid == f"it does not say {second}"
    assert differing_facts(profile, HERE | {second: None}) == [told]
