"""Reports and metrics of a run: what they say, and that no name acts on who reads them.

Not here: where all jobs stand (test_job_status.py), pings and systemd (test_job_telling.py).
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import stat
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from job_runs import FULL, HOSTILE, NIGHT_S, UNPRINTABLE, Tags, part, run_of
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from pscp.jobs.reports import notifications, report
from pscp.jobs.reports.outcome import DestinationRun, JobRun, Outcome
from pscp.progress.progress import Failure

DOCS = Path(__file__).parents[2] / "docs"


# --- reports


def test_a_failure_is_told_by_kind_with_counts_first_names_and_what_to_do() -> None:
    failures = (
        Failure("other", "SourceChanged", "it changed while it was copied"),
        Failure("", "FileError", "nothing was deleted"),
        *(dataclasses.replace(FULL, path=f"cam/{number}.rec") for number in range(7)),
    )
    bad = part(
        "store2:/vault/", outcome=Outcome.FAILED, files=3, bytes=2_000_000, bytes_sent=4_000_000,
        failures=failures, files_failed=8, connections_lost=2, chunks_resent=1, attempts=2,
    )  # fmt: skip
    text = report.as_text([run_of(part(files=11), bad, files_waiting=4)])
    told = "recordings: 1 of 2 destinations failed: store2:/vault/ (20"
    assert text.splitlines()[0].startswith(told)
    assert text.splitlines()[0].endswith(", 12.0 s, exit code 1)")
    assert "  store1:/vault/: done\n    11 copied" in text
    assert (
        "  store2:/vault/: failed\n    3 copied, 8 failed, 2.0 MB in 10.0 s (sent at 400.0 kB/s)"
        in text
    )
    assert "connected again 2 times, 1 chunk sent again, 2 attempts" in text
    told = "No space left on device (7): cam/0.rec, cam/1.rec, cam/2.rec, and 4 more"
    assert f"    {told}\n      make room there\n" in text
    assert text.count("make room there") == 1
    assert text.index("it changed while it was copied (1): other") > text.index(told)
    assert "    nothing was deleted\n" in text  # which is about no file
    assert "  4 files left for the next run" in text


def test_the_destinations_that_failed_come_first() -> None:
    parts = [
        part(f"site{each}:", outcome=Outcome.FAILED if each % 4 == 0 else Outcome.DONE)
        for each in range(1, 13)
    ]
    for text in (report.as_text([run_of(*parts)]), report.as_html([run_of(*parts)])):
        told = "recordings: 3 of 12 destinations failed: site4:, site8:, site12: ("
        assert told in text
        order = re.findall(r"^  (site\d+:):", text, re.M)
        assert order[:4] == ["site4:", "site8:", "site12:", "site1:"] and len(order) == 12
    parts[0] = part("site1:", outcome=Outcome.UNREACHABLE)
    text = report.as_text([run_of(*parts)])
    assert text.startswith("recordings: 4 of 12 destinations not done: site1:, site4:, ")
    every = [part(f"site{each}:", outcome=Outcome.FAILED) for each in range(9)]
    assert report.as_text([run_of(*every)]).startswith("recordings: failed (")
    assert "site5:, and 3 more (" in report.as_text([run_of(*every, part())])


def test_why_a_destination_failed_is_told_once() -> None:
    why = "nothing was deleted: 6 would be, more than max-delete 5"
    bad = part(outcome=Outcome.FAILED, message=why, failures=(Failure("", "FileError", why, "so"),))
    text = report.as_text([run_of(bad)])
    assert text.count(why) == 1 and "      so\n" in text


def test_a_summary_says_once_what_ended_all_and_which_host_it_is_about() -> None:
    over = "max-duration (4.0 s) is over"
    parts = [part(f"{each}:x/", outcome=Outcome.CUT, message=f"{over}\nhint") for each in "ab"]
    assert report.summary(run_of(*parts, message=over)) == over
    bad = part("dead:x/", outcome=Outcome.UNREACHABLE, message="dead: no route")
    assert report.summary(run_of(*parts, bad, message=over)) == f"{over}; dead:x/: no route"


def test_an_unreachable_destination_is_told_with_why_and_the_next_step() -> None:
    bad = part(outcome=Outcome.UNREACHABLE, message="no route to store1\ntry: ping store1")
    text = report.as_text([run_of(bad)])
    assert "  store1:/vault/: unreachable: no route to store1\n    try: ping store1\n" in text
    assert "pscp-run --check recordings" in text


def test_a_success_is_told_in_a_few_lines() -> None:
    assert len(report.as_text([run_of(part(files=2))]).splitlines()) == 3


def test_what_was_skipped_and_deleted_is_told() -> None:
    text = report.as_text([run_of(part(files=2, files_skipped=5, files_deleted=3))])
    assert "    2 copied, 5 skipped, 3 deleted, 0 B in" in text


def test_what_was_linked_is_told() -> None:
    run = run_of(part(files_linked=514))
    assert "    0 copied, 514 linked, 0 B in" in report.as_text([run])
    values = generate_latest(notifications.collect(run, {})).decode()
    its = '{destination="store1:/vault/",job="recordings",outcome="linked"}'
    assert f"pscp_job_files{its} 514.0" in values


def test_what_was_not_verified_is_told_so() -> None:
    assert "not verified" in report.as_text([run_of(part(verified=False))])
    assert "not verified" not in report.as_text([run_of(part())])


def test_json_has_every_field_and_names_as_they_are() -> None:
    failed = part(HOSTILE, outcome=Outcome.FAILED, failures=(Failure(HOSTILE, "FileError", "x"),))
    text = report.as_json([run_of(part(), failed, job=HOSTILE)])
    assert text.isascii() and not UNPRINTABLE.search(text)
    read = json.loads(text)
    [run] = read["runs"]
    assert (read["exit_code"], run["exit_code"]) == (1, 1)
    assert set(run) == {each.name for each in dataclasses.fields(JobRun)} | {"exit_code"}
    its = run["destinations"][1]
    assert set(its) == {each.name for each in dataclasses.fields(DestinationRun)}
    assert (run["job"], its["destination"], its["outcome"]) == (HOSTILE, HOSTILE, "failed")
    assert its["failures"] == [dataclasses.asdict(failed.failures[0])]


def test_every_field_of_json_is_documented() -> None:
    told = (DOCS / "reports.md").read_text()
    for record in (JobRun, DestinationRun, Failure):
        for each in dataclasses.fields(record):
            assert f"`{each.name}`" in told, (record, each.name)


def hostile_run() -> JobRun:
    failed = part(
        HOSTILE, outcome=Outcome.FAILED, message=HOSTILE,
        failures=(Failure(HOSTILE, "FileError", HOSTILE, HOSTILE),),
    )  # fmt: skip
    return run_of(failed, job=HOSTILE, message=HOSTILE)


def test_no_name_acts_on_a_terminal() -> None:
    text = report.as_text([hostile_run()])
    assert not UNPRINTABLE.search(text)
    assert not any(line.startswith("x") for line in text.splitlines())


def test_no_name_acts_on_a_browser() -> None:
    page = report.as_html([hostile_run()])
    tags = Tags(page)
    assert "script" not in tags.tags and not tags.addresses
    assert not UNPRINTABLE.search(page) and page.encode()
    assert tags.text.count("<script>") >= 6


@pytest.mark.parametrize("form", report.FORMS)
def test_a_report_is_written_whole_or_not_at_all(form: str, tmp_path: Path) -> None:
    path = tmp_path / "report"
    path.write_text("the last one")
    before = os.open(path, os.O_RDONLY)
    try:
        report.write_whole(str(path), report.FORMS[form]([run_of(part(files=5))]))
        assert os.read(before, 100) == b"the last one", "a reader keeps what it has opened"
    finally:
        os.close(before)
    assert path.read_text().strip() and os.listdir(tmp_path) == ["report"]


# --- files


def test_nothing_is_left_where_a_file_cannot_be_replaced(tmp_path: Path) -> None:
    (tmp_path / "report").mkdir()
    with pytest.raises(IsADirectoryError):
        report.write_whole(str(tmp_path / "report"), "x")
    with pytest.raises(FileNotFoundError):
        report.write_whole(str(tmp_path / "none" / "report"), "x")
    assert os.listdir(tmp_path) == ["report"] and os.listdir(tmp_path / "report") == []


def test_a_full_disk_leaves_the_file_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "report"
    path.write_text("whole")

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        report.write_whole(str(path), "new")
    assert path.read_text() == "whole" and os.listdir(tmp_path) == ["report"]


def test_a_folder_that_cannot_be_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on some network file systems: the file has its name by then."""

    def sync(fd: int) -> None:
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            raise OSError(22, "Invalid argument")

    monkeypatch.setattr(os, "fsync", sync)
    report.write_whole(str(tmp_path / "report"), "new")
    assert (tmp_path / "report").read_text() == "new"


def test_a_link_stays_and_what_it_leads_to_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("file")
    report.write_whole(str(tmp_path / "link"), "new")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "file").read_text() == "new"


def test_the_mode_is_the_users(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        report.write_whole(str(tmp_path / "file"), "new")
    finally:
        os.umask(before)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o640


def test_a_fifo_without_a_reader_is_waited_for_by_nobody(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(OSError, match="No such device"):
        report.write_whole(str(tmp_path / "fifo"), "x")
    assert (tmp_path / "fifo").is_fifo()


def test_a_device_stays_one(tmp_path: Path) -> None:
    report.write_whole("/dev/null", "x")
    (tmp_path / "null").symlink_to("/dev/null")
    report.write_whole(str(tmp_path / "null"), "x")
    assert Path("/dev/null").is_char_device() and (tmp_path / "null").is_char_device()


def test_a_file_in_memory_is_a_file() -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        report.write_whole(f"{folder}/page.html", "x")
        assert Path(folder, "page.html").read_text() == "x"


# --- metrics


def samples(text: str) -> Iterator[tuple[str, dict[str, str], float]]:
    for family in text_string_to_metric_families(text):
        for each in family.samples:
            yield each.name, each.labels, each.value


def metrics_of(run: JobRun, last_success_s: Mapping[str, float | None]) -> str:
    return generate_latest(notifications.collect(run, last_success_s)).decode()


def value(text: str, name: str, **labels: str) -> float:
    [found] = [v for n, its, v in samples(text) if n == name and labels.items() <= its.items()]
    return found


def test_metrics_have_the_numbers_of_each_destination() -> None:
    good = part(
        files=3, files_unchanged=4, files_skipped=5, files_deleted=6,
        bytes=5000, bytes_sent=6000, connections=7,
        connections_lost=8, chunks_resent=9, attempts=2,
    )  # fmt: skip
    bad = part("store2:/", outcome=Outcome.FAILED, failures=(FULL, FULL), files_failed=2)
    run = run_of(good, bad, files_waiting=6)
    text = metrics_of(run, {"store1:/vault/": NIGHT_S + 10, "store2:/": None})
    of_job, of_good = {"job": "recordings"}, {"destination": "store1:/vault/"}
    for name, number in (
        ("last_run_timestamp_seconds", NIGHT_S), ("exit_code", 1), ("waiting_files", 6),
    ):  # fmt: skip
        assert value(text, f"pscp_job_{name}", **of_job) == number
    for name, number in (
        ("copied_bytes", 5000), ("sent_bytes", 6000), ("seconds", 10),
        ("rate_bytes_per_second", 600), ("lanes", 7), ("retries", 8), ("resent_chunks", 9),
        ("attempts", 2), ("destination_exit_code", 0),
    ):  # fmt: skip
        assert value(text, f"pscp_job_{name}", **of_job, **of_good) == number
    for outcome, number in (
        ("copied", 3),
        ("unchanged", 4),
        ("skipped", 5),
        ("deleted", 6),
        ("failed", 0),
    ):
        assert value(text, "pscp_job_files", outcome=outcome, **of_good) == number
    assert value(text, "pscp_job_files", outcome="failed", destination="store2:/") == 2
    assert value(text, "pscp_job_destination_exit_code", destination="store2:/") == 1


def test_a_failed_run_tells_when_the_last_good_one_was() -> None:
    run = run_of(part(outcome=Outcome.UNREACHABLE))
    text = metrics_of(run, {"store1:/vault/": NIGHT_S - 86400, "store2:/": None})
    name = "pscp_job_last_success_timestamp_seconds"
    assert value(text, name, job="recordings", destination="store1:/vault/") == NIGHT_S - 86400
    assert value(text, name, job="recordings", destination="store2:/") == 0, (
        "an alert has to see it"
    )


def test_hostile_labels_are_read_back_and_add_no_metrics() -> None:
    destination = 'x"} 1\nevil 2\n' + HOSTILE
    text = metrics_of(run_of(part(destination), job=HOSTILE), {destination: 1.0})
    assert text.encode() and all(name.startswith("pscp_job_") for name, _, _ in samples(text))
    [labels] = [its for name, its, _ in samples(text) if name == "pscp_job_seconds"]
    assert labels["destination"].startswith('x"} 1\\x0aevil 2')


def test_every_metric_is_documented() -> None:
    told = (DOCS / "reports.md").read_text()
    text = metrics_of(run_of(part()), {"store1:/vault/": 1.0})
    assert [name for name, _, _ in samples(text) if f"`{name}`" not in told] == []


def test_jobs_that_share_the_collectors_folder_have_a_file_each(tmp_path: Path) -> None:
    for job in ("a", "b", "a/../b", "."):
        notifications.write_metrics(str(tmp_path), run_of(part(), job=job), {})
    names = sorted(os.listdir(tmp_path))
    assert len(names) == 4 and all(re.fullmatch(r"pscp_.*\.prom", n) for n in names)
    notifications.write_metrics(str(tmp_path / "own.prom"), run_of(part()), {})
    assert (tmp_path / "own.prom").is_file()
