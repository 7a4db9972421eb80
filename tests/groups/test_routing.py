import pytest
from hypothesis import given
from hypothesis import strategies as st

import filtergroups as fg


def test_two_tasks_route_as_the_paper_does():
    family = fg.family(["age", "gender"])
    assert family.names == ("age", "gender", "shared")
    assert family.readable == ((True, False, True), (False, True, True), (False, False, True))
    assert family.containing("age") == (0, 2)


def test_one_task_has_one_group_of_its_name():
    family = fg.family(["age"])
    assert family.names == ("age",)
    assert family.full == 0


def test_all_subsets_of_three_tasks_are_seven_groups():
    family = fg.family(["a", "b", "c"], "all_subsets")
    assert family.names == ("a", "b", "c", "a+b", "a+c", "b+c", "shared")
    reader = dict(zip(family.names, family.readable, strict=True))
    assert [n for n, ok in zip(family.names, reader["a"], strict=True) if ok] == ["a", "a+b", "a+c", "shared"]


@given(st.integers(1, 5), st.data())
def test_reading_is_a_partial_order_with_the_full_set_on_top(count, data):
    tasks = [f"t{n}" for n in range(count)]
    sets = data.draw(st.sets(st.frozensets(st.sampled_from(tasks), min_size=1))) | {frozenset(tasks)}
    family = fg.family(tasks, sets)
    groups = range(len(family))
    for g in groups:
        assert family.readable[g][g]
        assert family.readable[g][family.full]
        for h in groups:
            assert not (family.readable[g][h] and family.readable[h][g]) or g == h
            for i in groups:
                assert not (family.readable[g][h] and family.readable[h][i]) or family.readable[g][i]


@pytest.mark.parametrize(
    ("tasks", "groups", "said"),
    [
        (["a", "a"], "tasks+shared", "unique"),
        (["a", "b"], [{"a"}], "contains the set of all tasks"),
        (["a", "b"], [{"a", "c"}, {"a", "b"}], r"found \['a', 'c'\]"),
        (["a", "b"], [{"a", "b"}, {"b", "a"}], "may appear once"),
        (["a", "b"], "subsets", "found 'subsets'"),
        (["a", "b"], ["a", "b"], "bare text"),
        (["shared", "b"], "tasks+shared", "not 'shared'"),
        (["a.b"], "tasks+shared", "without '.'"),
        ([], "tasks+shared", "at least one task"),
    ],
)
def test_bad_families_are_refused_in_one_line(tasks, groups, said):
    with pytest.raises(ValueError, match=said) as caught:
        fg.family(tasks, groups)
    assert "\n" not in str(caught.value)
