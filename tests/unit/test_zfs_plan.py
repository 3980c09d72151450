"""What is planned for a dataset, for any history of the two ends.

Not here: that zfs does it (../zfs, ../openzfs). Read next: pscp/zfs/plan.py.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pscp.ground import errors
from pscp.zfs.inventory import Dataset, Snapshot
from pscp.zfs.plan import (
    Pair,
    Plan,
    Stream,
    arrivals,
    awaited,
    dest_after,
    make_plan,
    of_ours_to_prune,
)


def history(*guids: int, name: str = "tank/a", bookmarks: tuple[int, ...] = ()) -> Dataset:
    """Snapshots whose names, GUIDs and times follow from one number each."""
    return Dataset(
        name,
        tuple(Snapshot(f"s{guid}", guid, txg=10 * guid) for guid in sorted(guids)),
        tuple(Snapshot(f"b{guid}", guid, txg=10 * guid, is_bookmark=True) for guid in bookmarks),
    )


def there(*guids: int) -> Dataset:
    return history(*guids, name="vault/a")


def receive(have: list[int], plan: Plan, source: Dataset) -> list[int]:
    """What zfs receive makes of the streams, as strict as it is."""
    for stream in plan.streams:
        assert stream.snapshot in source.snapshots
        assert stream.base is None or not (stream.base.is_bookmark and stream.all_between)
        if stream.base is None:
            assert not have and not stream.all_between
            have = [stream.snapshot.guid]
            continue
        assert have[-1] == stream.base.guid
        come = [s for s in source.snapshots if stream.base.txg < s.txg <= stream.snapshot.txg]
        have = have + [s.guid for s in (come if stream.all_between else come[-1:])]
    return have


guids = st.sets(st.integers(1, 12), max_size=8)


@given(guids, guids, guids, st.booleans(), st.booleans())
def test_any_history(
    here: set[int], marks: set[int], far: set[int], all_between: bool, forced: bool
) -> None:
    source, dest = history(*here, bookmarks=tuple(sorted(marks))), there(*far)
    try:
        plan = make_plan(
            source, "vault/a", dest if far else None,
            all_between=all_between, force_rollback=forced,
        )  # fmt: skip
    except errors.NoSnapshot:
        assert not here
        return
    except errors.NoCommonSnapshot:
        assert not far & (here | marks)
        return
    except errors.Diverged:
        assert not forced and max(far) not in here | marks
        return
    kept = sorted(far)
    if plan.rollback_to:
        assert forced
        last = int(plan.rollback_to[1:])
        assert last == max(far & (here | marks)) and last < max(far)
        kept = [guid for guid in kept if guid <= last]
    have = receive(kept, plan, source)
    assert set(have) == {*kept, *arrivals(source, plan)}
    assert have[: len(kept)] == kept  # nothing else goes
    after = dest_after(Pair(source, "vault/a", dest if far else None), plan)
    assert after is not None and [each.guid for each in after.snapshots] == have
    common = max(far & (here | marks), default=0)
    assert have[-1] == max([common, *here])
    if all_between:
        assert {guid for guid in here if guid > common} <= set(have)


def test_a_full_stream_of_the_oldest_then_all_between() -> None:
    source = history(1, 2, 3)
    first, last = source.snapshots[0], source.snapshots[2]
    plan = make_plan(source, "vault/a", None)
    assert plan.streams == (
        Stream("tank/a", "vault/a", first), Stream("tank/a", "vault/a", last, first, True),
    )  # fmt: skip


def test_a_bookmark_begins_an_increment() -> None:
    plan = make_plan(history(3, 4, 5, bookmarks=(2,)), "vault/a", there(1, 2))
    assert [stream.base.short for stream in plan.streams if stream.base] == ["#b2", "@s3"]
    assert [stream.all_between for stream in plan.streams] == [False, True]


def test_a_clone_begins_with_what_it_is_a_clone_of() -> None:
    clone = replace(history(4, 5, 6), origin="tank/base@s", origin_guid=2)
    plan = make_plan(clone, "vault/a", None, has_origin=True)
    first, last = plan.streams
    assert (first.base_name, first.all_between, last.base_name) == ("tank/base@s", False, "@s4")
    assert arrivals(clone, plan) == {4, 5, 6}
    assert [need.name for each in plan.streams for need in each.needed] == ["s4", "s4", "s6"]
    [only] = make_plan(clone, "vault/a", None, has_origin=True, all_between=False).streams
    assert (only.base_name, only.snapshot) == ("tank/base@s", clone.snapshots[-1])
    for has_origin in (True, False):  # an increment is one, whatever it began with
        plan = make_plan(clone, "vault/a", there(2, 4), has_origin=has_origin)
        assert [each.base_name for each in plan.streams] == ["@s4"]


@given(st.dictionaries(st.text("ab/", min_size=1, max_size=5), st.text("ab/", max_size=5)))
def test_what_waits_for_what_never_waits_in_a_circle(origins: dict[str, str]) -> None:
    """Whatever a source claims of its clones."""
    origins = {f"t/{name}": f"t/{of}@s" for name, of in origins.items()}
    sources = {name: Dataset(name, origin=of) for name, of in origins.items()}
    before = awaited(sources)
    assert sorted(before) == sorted(sources)
    came: set[str] = set()
    for name, others in before.items():
        assert others <= came and {name.rpartition("/")[0]} & sources.keys() <= others
        came.add(name)


def test_a_cut_receive_is_gone_on_with_before_anything_else() -> None:
    cut = Dataset("vault/a", token="1-abc")
    plan = make_plan(history(1, 2), "vault/a", cut, can_resume=True)
    assert plan.streams == (Stream("tank/a", "vault/a", token="1-abc"),) and plan.goes_on
    with pytest.raises(errors.ResumeRefused):
        make_plan(history(1, 2), "vault/a", cut)


def test_a_base_that_the_source_has_destroyed_is_told_of() -> None:
    """By --keep-last of a replication to another destination: readonly=on would not help."""
    for source in (history(1, 4, 5), history(4, 5)):
        with pytest.raises((errors.Diverged, errors.NoCommonSnapshot)) as caught:
            make_plan(source, "vault/a", there(1, 2, 3))
        assert "--bookmark" in caught.value.hint and "readonly" not in caught.value.hint
        assert "its own --snapshot-name" in caught.value.hint


def test_an_existing_dataset_is_overwritten_only_when_forced() -> None:
    with pytest.raises(errors.DestinationExists):
        make_plan(history(1), "vault/a", there())
    assert make_plan(history(1), "vault/a", there(), force_rollback=True).streams


@given(
    st.lists(
        st.tuples(st.sampled_from(["", "ours", "theirs"]), st.sampled_from("hw")), max_size=12
    ),
    st.integers(1, 5),
)
def test_only_ours_of_the_name_are_pruned_and_never_the_newest(
    marks: list[tuple[str, str]], keep: int
) -> None:
    snapshots = tuple(
        Snapshot(f"{name}{n}", n, n, mark=mark) for n, (mark, name) in enumerate(marks)
    )

    def hourly(name: str) -> bool:
        return name.startswith("h")

    gone = of_ours_to_prune(snapshots, "ours", keep, hourly)
    assert all(each.mark == "ours" and each.name[0] == "h" for each in gone)
    assert not snapshots or snapshots[-1] not in gone
    assert len(gone) == max(0, marks.count(("ours", "h")) - keep)
    for base in range(len(marks)):  # of nights that failed, nor what both ends have
        kept = of_ours_to_prune(snapshots, "ours", keep, hourly, {*range(base + 1)})
        assert snapshots[base] not in kept and {*kept} == {*gone} - {snapshots[base]}
