"""The end of a copy: in which order folders get their metadata."""

from __future__ import annotations

from unittest import mock

from pscp.endpoint.asking import requests
from pscp.endpoint.reading import tree
from pscp.endpoint.there import lookup
from pscp.transfer.ending.ending import Ending
from pscp.transfer.pieces.plan import Ask


def folder(path: str, mode: int, top: int = 0) -> tree.Entry:
    return tree.Entry(tree.FOLDER, top, path, 0, mode, 0, 0, {})


def finished(*found: tree.Entry) -> list[tuple[str, int]]:
    """Return folders in the order in which they get their modes, of those found in this order."""
    terms, results = mock.MagicMock(), mock.MagicMock()
    counted = ("done", "resumed", "unchanged", "linked", "skipped", "failed", "total")
    terms.counters = mock.Mock(connections_lost=0, **{f"files_{each}": 0 for each in counted})
    terms.earlier, terms.target.made = {}, False
    results.failures, results.blocked = [], {}
    ending = Ending(terms, results)
    for entry in found:
        ending.folders.add(entry)
    ending.finish(mock.Mock(), mock.Mock(), None, None)
    ending.close()
    asked = [call.args[0] for call in terms.queue.add.call_args_list]
    folders = [each.request for each in asked if isinstance(each, Ask)]
    return [
        (entry.path, entry.mode)
        for request in folders
        if isinstance(request, (requests.Folders, lookup.Adopt))
        for entry in request.entries
    ]


def test_folders_are_finished_before_one_above_them_is_closed() -> None:
    """Whichever lane's answer about them came first."""
    shut, deep = folder("t/shut", 0o000), folder("t/shut/in/deep", 0o111)
    within, beside = folder("t/shut/in", 0o755), folder("t/a", 0o2555)
    top = folder("t", 0o755)
    for found in ([top, shut, within, deep, beside], [deep, within, beside, shut, top]):
        order = [path for path, _ in finished(*found)]
        assert order[-2:] == ["t/shut/in/deep", "t/shut"]
        assert sorted(order) == ["t", "t/a", "t/shut", "t/shut/in", "t/shut/in/deep"]


def test_a_folder_of_two_sources_ends_with_the_first_ones_mode() -> None:
    assert finished(folder("t", 0o755), folder("t", 0, 1))[-1] == ("t", 0o755)
    assert finished(folder("t", 0), folder("t", 0o755, 1))[-1] == ("t", 0)
