"""Mends that are taken out, one at a time, to see whether the model finds what they are for.

Each is a piece of pscp's text and what takes its place in a copy of the package. `scripts/soak
mutants` runs the model over each (../soak/mutants.py), and prints how many examples it took.

What only costs time, or is only told, the model does not see: those name the test that does.

Not here: races of two lanes (test_model.py has A1 to A5, and takes their mends out), SFTP (A4).
"""

from __future__ import annotations

from typing import NamedTuple


class Mutant(NamedTuple):
    finding: str
    file: str
    old: str
    new: str
    note: str = ""
    is_race: bool = False  # of lanes: test_model.py finds it; a coordinator that stops with its
    # agents, as here, goes on too late for it, or not at all
    also: tuple[str, str, str] = ("", "", "")  # another one, where two mends each do
    test: str = ""  # FILE::NAME below tests/, of what finds it where the model cannot


_OF_FOLDERS = "core/test_folder_check.py::test_"
_OF_SNAPSHOTS = "core/test_snapshot_folders.py::test_"
COMMIT, PARTS, FENCE = (f"endpoint/writing/{name}.py" for name in ("commit", "parts", "fence"))

MUTANTS = (
    Mutant(
        "N1", "transfer/terms/journal.py",
        'if "sparse" in entry.extra and rest != ZEROS:', "if False:",
        "a sparse file's part is continued whatever lies in its holes",
    ),
    Mutant(
        "N2", PARTS,
        "WAS_FILE and not _is_file(folder_fd, name):", "WAS_FILE:",
        "what --inplace left stays for ever",
    ),
    Mutant(
        "N4", "endpoint/writing/removal.py",
        "if error.errno not in _CANNOT_SYNC:", "if False:",
        "a folder that cannot be synced is let pass",
    ),
    Mutant(
        "there already", "transfer/ending/moving.py",
        "        if not self._why_not:\n            self._make_durable()\n", "",
        "what a killed run has named is not synced before its source goes",
    ),
    Mutant(
        "there already", "transfer/terms/results.py",
        "return self._doubted.isdisjoint(folders_of(path, itself=True))", "return True",
        "sources go though their folder was not synced",
    ),
    Mutant(
        "N5", "endpoint/writing/placing.py",
        "    if marker is None:\n        return is_empty and fence is not None and fence.is_file\n",
        "    if marker is None:\n        return fence is not None and fence.is_file\n",
        "what DEST meant is believed of any folder",
    ),
    Mutant(
        "N8", "endpoint/writing/backup.py",
        "if (compared or self._links.pop(path, None)) == (files.identity(before), True):",
        "if False:",
        "a resend of a large file replaces the backup",
    ),
    Mutant(
        "N10", "transfer/ending/ending.py",
        "        if not is_dry and (mirror is not None or len(self.folders)):\n"
        "            self._discard()\n", "",
        "parts are removed after folders have their times",
        also=(PARTS, "with fence.keeping_times(folder_fd):", "with contextlib.nullcontext():"),
    ),
    Mutant(
        "N11", "transfer/walk/decide.py",
        '    _row("hardlink", "NOTHING", Action.LINK),\n', "",
        "a hard link is sent in a pack",
    ),
    Mutant(
        "N12", "endpoint/writing/placing.py",
        "        removal.sync_folder(fd)\n", "        pass\n",
        "a DEST that was made is not synced",
    ),
    Mutant(
        "N12 again", "endpoint/writing/placing.py",
        "        if next(found, None):\n", "        if True:\n",
        "nor is one that a run made which was cut then",
    ),
    Mutant(
        "unmarked", "endpoint/writing/sink.py",
        "        self.settler.sync(self.root.marked)", "        pass",
        "a power cut brings the marker back, and DEST has its old meaning",
    ),
    Mutant(
        "DEST itself", "transfer/walk/plan_walk.py", ' and item.entry.path != ""', "",
        "an empty folder that contents land in gets their folder's mode",
        test="core/test_folder_check.py::"
        "test_nothing_is_asked_of_what_lands_in_an_empty_folder",
    ),
    Mutant(
        "N16", "endpoint/there/mirror.py",
        "            _remove_parts(of, path)\n", "",
        "parts keep a folder from being deleted",
    ),
    Mutant(
        "N18", "transfer/walk/lookups.py",
        "        results.leave_to_next(item)\n", "        pass\n",
        "the next name of a file that is skipped is not sent",
    ),
    Mutant(
        "T7", "transfer/walk/lookups.py",
        "        results.leave_to_next(item)\n", "        results.is_there(entry)\n",
        "another name is linked to a file that is left out",
    ),
    Mutant(
        "next name", "transfer/terms/results.py",
        'if failure["kind"] in _OF_A_NAME and not is_of_file and', "if False and",
        "a name that cannot be had takes all names of its file with it",
    ),
    Mutant(
        "as old", "transfer/walk/decide.py",
        "there.mtime_ns > entry.mtime_ns", "there.mtime_ns >= entry.mtime_ns",
        "-u leaves out what has its source's time, and other bytes",
    ),
    Mutant(
        "listed", "manifests/making.py",
        '"unchanged", "metadata", "linked"', '"unchanged", "linked"',
        "what gets other metadata alone is not in the manifest",
    ),
    Mutant(
        "P10", "transfer/terms/journal.py",
        "PartUse.AS_NOTED if by_time and is_untouched else PartUse.NOTED_COMPARED",
        "PartUse.AS_NOTED",  # by each of the two the ends hash it
        "the journal is believed of a source that has changed in place",
    ),
    Mutant(
        "in place", "transfer/terms/journal.py",
        "landed.ctime_ns == ctime_of(entry)", "True",
        "a part goes on though its source was written in place since, and its time set back",
    ),
    Mutant(
        "stretches", "transfer/walk/comparing.py",
        "        if stretches.differs:\n            return\n", "",
        "each stretch that differs has the file copied",
    ),
    Mutant(
        "A1", COMMIT,
        "            if not is_named(part.fd, folder_fd, temporary):\n"
        "                if is_named(part.fd, folder_fd, name):\n"
        "                    return\n"
        "                raise part_replaced(path)\n", "",
        "a part is renamed by its name alone",
        is_race=True,
    ),
    Mutant(
        "A2",
        FENCE,
        "        if not self._is_ours():\n",
        "        if False:\n",
        "a run that was superseded goes on",
        is_race=True,
    ),
    Mutant(
        "A3", PARTS,
        "            if not fence.is_named(fd, folder_fd, self.name(name)):\n                with",
        "            if False:\n                with",
        "a part is written whatever name it has",
        is_race=True,
    ),
    Mutant(
        "A5", PARTS,
        "return part_name(name, self._token + (nonce or self._nonce))",
        "return part_name(name, self._token)",
        "all runs write into one part",
    ),
    Mutant(
        "in the way", "transfer/ending/mirror.py",
        "elif not self._is_protected(top, path, kind):", "else:",
        "what --exclude protects is deleted for a file of its name",
    ),
    Mutant(
        "stays", "transfer/copy.py",
        "self._options.delete and not self._options.ignore_existing", "self._options.delete",
        "a file goes for a folder, with --ignore-existing",
    ),
    Mutant(
        "not made", "transfer/walk/plan_walk.py",
        "requests.Folds(folder, not options.existing)", "requests.Folds(folder, True)",
        "a folder is made with --existing",
    ),
    Mutant(
        "unfinished", "transfer/ending/ending.py",
        "                for row in waiting.take():\n                    self.links.add(row)\n",
        "                self.links = waiting\n",
        "a hard link in whose way a folder was is lost",
    ),
    Mutant(
        "made way", "transfer/ending/ending.py",
        "            self._finish_links(copy_blocked)", "            self._finish_links(copy_now)",
        "a folder goes for a hard link, which --existing leaves out then",
    ),
    Mutant(
        "kept", "endpoint/there/mirror.py",
        "    if of.settler.keeper is not None and", "    if False and",
        "what --delete takes away is not in --backup-dir",
    ),
    Mutant(
        "unfinished", "transfer/walk/decide.py",
        "    is_its_own = there.kind == entry.kind == tree.FOLDER\n",
        "    is_its_own = there.kind == tree.FOLDER\n",
        "a folder that a killed run left stands in a file's way",
    ),
    Mutant(
        "more", "endpoint/there/listings.py",
        "is_more = is_there and", "is_more = False and",
        "what a folder has beside its listing stays",
    ),
    Mutant(
        "more", "endpoint/there/listings.py",
        "is_all=not differing", "is_all=True",
        "a name that is missing is taken for one that is too much",
    ),
    Mutant(
        "more", "transfer/walk/folder_check.py",
        "            elif is_same and of_folder", "            if is_same and of_folder",
        "a folder in which something is deleted does not get its time back",
    ),
    Mutant(
        "more again", "transfer/walk/folder_check.py",
        "range(len(wanted.names))), False, [], True", "range(len(wanted.names))), False, [], False",
        "what a folder has that could not be compared stays",
    ),
    Mutant(
        "bytes first", COMMIT,
        "        os.fsync(part.fd)\n        if self.keeper", "        if self.keeper",
        "a file has its name before its bytes are on the disk",
    ),
    Mutant(
        "names first", COMMIT,
        "        outcome = self.make_names_durable(part.entry.path for part in named)\n",
        "        outcome = [None for _ in named]\n",
        "a source goes before the name of its copy is on the disk",
    ),
    Mutant(
        "tries", "endpoint/writing/tries.py",
        "(before + 1) * fence.TRY)", "(before + 1) * fence.TRY + fence.TRY - 1)",
        "a try of a task that was begun again goes on",
    ),
    Mutant(
        "able", "cluster/dispatcher.py",
        "            if not outcome.is_shut_out:\n", "            if True:\n",
        "a worker that another try has shut out counts as one that can do nothing",
    ),
    Mutant(
        "over", "cluster/dispatcher.py",
        "        self._shut_out(task)\n        settle", "        settle",
        "a try that begins once its task is over changes a folder that is finished",
    ),
    Mutant(
        "dropped", "cluster/dispatcher.py",
        "suppress(CancelledError):", "suppress(KeyError):",
        "a result that is lost with its worker ends the copy",
    ),
    Mutant(
        "dropped", "cluster/dispatcher.py",
        '        return Outcome("", {}, {}, problem)\n',
        "        self._queue.stop(problem)\n        return None\n",
        "a task that the scheduler has dropped ends the copy",
    ),
    Mutant(
        "taken back", "cluster/dispatcher.py", "            task.workers = []\n", "",
        "a task of which all workers are lost ends the copy",
    ),
    Mutant(
        "host lost", "cluster/dispatcher.py",
        "ignored, ignored, is_prompt=True)", "ignored, ignored, lost=lambda: None)",
        "what shuts a task's tries out is not asked again when the far host is lost",
    ),
    Mutant(
        "outlives", FENCE, "        if not self._is_ours():\n", "        if False:\n",
        "a worker whose run was killed goes on beside the next run, and after it",
    ),
    Mutant(
        "goes on", "transfer/walk/file_job.py",
        "list(subtract([(0, item.entry.size)], done))", "[(0, item.entry.size)]",
        "what the journal says has landed is sent once more",
    ),
    Mutant(
        "silent", "cluster/place.py",
        "if isinstance(each, OSError):", "if isinstance(each, ConnectionError):",
        "a worker that does not answer is taken for one that cannot run pscp",
    ),
    Mutant(
        "elsewhere", "cluster/mover.py", "if not _sees_place(errand):", "if False:",
        "a worker that was silent at first copies what it has under the same names",
    ),
    Mutant(
        "refused", "cluster/mover.py",
        "            if not self.note_refusal(*(failure for _, failure in failed)):\n",
        "            if True:\n",
        "files that a try was refused, since another one has begun, fail",
    ),
    Mutant(
        "alike", "transfer/walk/names.py",
        'self._folds(prefix[:-1]) if may_be_one else ""', '""',
        "of two names that are one the second replaces the first",
    ),
    Mutant(
        "alike", "endpoint/there/sameness.py",
        "for place, name in enumerate(folded) if counts[name] > 1", "for place, name in ()",
        "of two names that are one the listing has the first alone",
    ),
    Mutant(
        "alike", "endpoint/there/listings.py",
        "alike(names) if len(names) > NAMES_MOST else []", "[]",
        "so it is where the first is in another stretch",
    ),
    Mutant(
        "alike", "transfer/walk/plan_walk.py",
        "            self._queue.run_alone(lambda: self._items.results.leave_to_next(item))\n", "",
        "a name that is another's takes all names of its file with it",
    ),
    Mutant(
        "alike", "transfer/walk/folder_check.py",
        "            if self._described:\n", "            if False:\n",
        "files come when the names in their folder are forgotten",
    ),
    Mutant(
        "alike untold", "transfer/walk/plan_walk.py",
        'return "" if is_sure else', 'return "" if True else',
        "names are not one where that cannot be told",
    ),
    Mutant(
        "alike above", "transfer/walk/plan_walk.py",
        "self._names.check(item.entry)\n                self._walked", "self._walked",
        "folders above sources are not compared",
    ),
    Mutant(
        "alike mirrored", "endpoint/there/mirror.py",
        "same = _keys(fd, listed - there)", "same = _keys(fd, ())",
        "a mirror deletes what has another spelling there",
    ),
    Mutant(
        "alike deleted", "transfer/walk/plan_walk.py",
        "            of_folder = _ALL_STAYS\n", "",
        "a mirror deletes by a folder that is another one there",
    ),
    Mutant(
        "alike unread", "transfer/walk/plan_walk.py",
        "            self._names.check(folder)\n", "            pass\n",
        "a file's name may be that of a folder that is the same",
    ),
    Mutant(
        "snapshot", "endpoint/there/linkdest.py", "                if not replaces:\n",
        "                if False:\n",
        "what is there and newer is yesterday's file afterwards, with -u",
    ),
    Mutant(
        "snapshot of some", "transfer/walk/folder_check.py",
        "picks and bool(options.link_dest)", "False",
        "what a size leaves out is linked",
    ),
    Mutant(
        "other modes", "transfer/walk/folder_check.py",
        "if attributes is None and not check.hides:", "if not check.hides:",
        "a file that has its source's mode does not get that of --chmod",
    ),
    Mutant(
        "one place", "transfer/terms/tokens.py",
        '            state.remember_entry("tokens", own, (own,), token)\n', "            pass\n",
        "a copy to several hosts does not go on with another of them",
    ),
    Mutant(
        "after", "endpoint/there/listings.py", "name > after and ", "",
        "a stretch of names is compared with what is before it",
        test=_OF_FOLDERS + "stretches_of_a_folder_that_are_the_same",
    ),
    Mutant(
        "up to", "endpoint/there/listings.py", " and (not up_to or name <= up_to)", "",
        "a stretch of names is compared with what is behind it",
        test=_OF_FOLDERS + "stretches_of_a_folder_that_are_the_same",
    ),
    Mutant(
        "after", "transfer/ending/mirror.py", "        folder.low = of_folder.after\n", "",
        "a mirror asks for what is before a stretch, too",
        test=_OF_FOLDERS + "a_mirror_of_more_names_than_a_listing_takes",
    ),
    Mutant(
        "up to", "transfer/ending/mirror.py", "folder.piece(of_folder.up_to)", 'folder.piece("")',
        "a mirror asks for what is behind a stretch, too",
        test=_OF_FOLDERS + "a_mirror_of_more_names_than_a_listing_takes",
    ),
    Mutant(
        "up to", "transfer/ending/walked_folder.py",
        'self.low = of_folder.up_to if of_folder is not None else ""', 'self.low = ""',
        "a mirror keeps the names that a listing has",
        test=_OF_FOLDERS + "a_mirror_of_more_names_than_a_listing_takes",
    ),
    Mutant(
        "after", "transfer/ending/mirror.py", "folder.piece(of_folder.after)", 'folder.piece("")',
        "what no listing has is asked for up to the folder's end",
        test=_OF_FOLDERS + "stretches_that_no_listing_can_be_of",
    ),
    Mutant(
        "bounds", "transfer/walk/folder_check.py",
        "is_file and not check.bounds.hold(size, mtime_ns)", "False",
        "what a size or an age leaves out is told as unchanged",
        test=_OF_FOLDERS + "what_sizes_and_ages_leave_out_is_neither_copied_nor_unchanged",
    ),
    Mutant(
        "bounds", "transfer/walk/folder_check.py", "bounds != NO_BOUNDS or ", "",
        "sizes and ages are not looked at where the listing is the same",
        test=_OF_FOLDERS + "what_sizes_and_ages_leave_out_is_neither_copied_nor_unchanged",
    ),
    Mutant(
        "backups", "transfer/walk/folder_check.py", " and not self._gets_backups(item)", "",
        "a folder that gets that of the backups does not keep its time",
        test=_OF_FOLDERS + "a_folder_that_gets_that_of_the_backups_keeps_its_time",
    ),
    Mutant(
        "backups", "transfer/walk/folder_check.py", " or may_refuse is not None\n", "\n",
        "an unchanged file may have a backup's name",
        test=_OF_FOLDERS + "no_backup_is_of_a_files_own_name",
    ),
    Mutant(
        "taken names", "transfer/walk/plan_walk.py", "path in self._terms.placement.taken or ", "",
        "what is unchanged in a folder is replaced by a source of its name, and no failure",
        test="e2e/test_copy_placement.py::test_what_was_there_already_gives_way_too",
    ),
    Mutant(
        "no file by now", "transfer/pieces/answers.py",
        'failure["errno"] in _OF_NO_FILE', "False",
        "a folder or link in a file's place is the system's failure, and not a change",
        test="core/test_file_job.py::test_a_source_that_changes_meanwhile_is_not_delivered",
    ),
    Mutant(
        "tells", "transfer/walk/folder_check.py", "self.results.wants_files or ", "",
        "-vv does not tell of what is unchanged",
        test=_OF_FOLDERS + "each_file_is_told_of_though_only_its_folder_is_compared",
    ),
    Mutant(
        "late part", "endpoint/writing/parts.py",
        "contextlib.suppress(FileExistsError), fence.keeping_times(folder_fd)",
        "contextlib.suppress(FileExistsError)",
        "a folder that has its times gets today's, where a lane comes late",
        test="core/test_sink.py::"
        "test_the_part_of_a_lane_that_comes_late_leaves_its_folder_the_final_times",
    ),
    Mutant(
        "lost lanes", "endpoint/writing/tries.py", "lane in own for lane", "lane > first for lane",
        "a try that has lost lanes goes on beside the next one",
        test="unit/test_tries.py::test_a_try_that_has_lost_lanes_is_shut_out_by_the_next",
    ),
    Mutant(
        "made already", "endpoint/writing/sink.py",
        "None if value.kind == tree.LINK else is_made)", "None)",
        "a FIFO that a lost lane has made fails",
        test="core/test_coordinator.py::test_a_fifo_that_a_lost_lane_has_made_is_no_obstacle",
    ),
    Mutant(
        "kept names", "endpoint/writing/backup.py",
        "(compared or self._links.pop(path, None))", "compared",
        "a large file that has several names, sent anew, replaces the backups of its further ones",
        test="core/test_backup.py::"
        "test_the_same_command_once_more_keeps_what_was_there_first_at_all_names",
    ),
    Mutant(
        "linked names", "transfer/walk/folder_check.py",
        "(may_refuse is not None and may_refuse(above + to_text(name)))", "False",
        "what may be replaced by a backup is linked",
        test=_OF_SNAPSHOTS + "what_has_a_backups_name_is_not_linked",
    ),
    Mutant(
        "above", "transfer/walk/plan_walk.py",
        "self._walked_folders.check(item.entry)\n            except", "pass\n            except",
        "a folder that is another one there gets what is linked",
        test="core/test_folding.py::test_a_folder_that_is_anothers_gets_nothing_of_yesterday",
    ),
    Mutant(
        "above", "transfer/walk/plan_walk.py",
        "self._names.refused, self._terms.above)", "self._names.refused)",
        "so it does once the walk was in another folder",
        test="core/test_folding.py::test_a_folder_that_is_anothers_gets_nothing_of_yesterday",
    ),
    Mutant(
        "owners", "transfer/walk/folder_check.py", "attributes.owner(owner) or owner", "owner",
        "a file that has its source's owner does not get that of --chown",
        test=_OF_SNAPSHOTS + "what_has_the_owner_that_it_is_to_get_is_not_asked_about",
    ),
    Mutant(
        "leaving", "ground/leaving.py",
        "if login.socket and os.path.exists(login.socket):", "if False:",
        "what leads to a connection that is kept ends with its login",
        test="unit/test_leaving.py::test_what_leads_to_a_connection_that_is_kept_stays",
    ),
    Mutant(
        "leaving", "ground/signals.py",
        "processes.descendants(pid, _BEGUN_S)", "processes.descendants(pid)",
        "a forced end takes what a shell started before it became pscp",
        test="faults/test_signals_anywhere.py::test_an_end_that_never_comes_is_forced",
    ),
    Mutant(
        "leaving", "cluster/mover.py",
        "for stop in list(self._stops):", "for stop in list[stops.Stop]():",
        "a task waits for its login though its copy is over",
        test="unit/test_tasks.py::test_a_login_that_a_task_waits_for_ends_with_the_copy",
    ),
    Mutant(
        "first copy", "transfer/coordinator.py",
        "new = [item for item in items if item.entry.top in self.terms.new_tops]", "new = []",
        "the further names of a file whose first one is refused are looked up in vain",
        also=("transfer/coordinator.py", "if item.entry.top not in self.terms.new_tops]", "]"),
        test="e2e/test_hard_link_names.py::test_where_no_name_can_be_had_each_is_told_of",
    ),
    Mutant(
        "dry run", "endpoint/there/linkdest.py",
        "return hardlinks.status_there(self._sink, path) is None", "return True",
        "-n says of what is there and differs that it would be linked",
        test=_OF_SNAPSHOTS + "what_is_there_and_differs_is_decided_file_by_file",
    ),
)  # fmt: skip
