"""What blocks give, as values that leave the process."""

import pickle

import cloudpickle
from hypothesis import given
from hypothesis import strategies as st

from ragbraid.dsl.records import make_record
from ragbraid.flows.cache import canonical

names = st.dictionaries(st.from_regex(r"[a-z][a-z_]{0,8}", fullmatch=True), st.integers() | st.text(), max_size=5)


@given(names)
def test_a_record_comes_back_from_a_pickle_with_the_same_fields_and_the_same_cache_key(
    values: dict[str, object],
) -> None:
    record = make_record("find_output", {name: type(value) for name, value in values.items()})(**values)
    for module in (pickle, cloudpickle):
        again = module.loads(module.dumps(record))
        assert {name: getattr(again, name) for name in values} == values
        assert type(again).__name__ == "FindOutput"
        assert canonical(again) == canonical(record)


def test_a_record_may_hold_another_one() -> None:
    inner = make_record("inner_output", {"n": int})(n=3)
    outer = make_record("outer_output", {"inner": type(inner), "steps": int})(inner=inner, steps=1)
    again = pickle.loads(pickle.dumps([outer]))[0]
    assert (again.inner.n, again.steps) == (3, 1)
