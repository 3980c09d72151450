"""The command line: argv becomes Options, an outcome becomes words and an exit code.

Not here: the options' letters and help (../options/arguments.py), what they mean
(options/options.py), what a copy does (calls/api.py), and how it is shown while it runs
(progress/progress.py). It imports little at the top, so that --help and a slip of the finger are
answered at once. Read next: calls/api.py.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from pscp.cli.closing import closing_line, conclude, table
from pscp.cli.run_log import run_command, shown_run
from pscp.ground import log
from pscp.ground.errors import UsageError
from pscp.ground.locations import Location, check_direction, parse_host, parse_location
from pscp.ground.signals import raise_on_signals
from pscp.options.arguments import NO_COPIES, USAGE, make_parser
from pscp.options.keywords import as_typed
from pscp.options.option_pairs import ONE_STREAM, check_no_cluster
from pscp.options.options import Options
from pscp.progress.progress import Notes, Outcome, Passing, Reporter, Result

if TYPE_CHECKING:
    from typing import TypeAlias

    from pscp.cli.pipe import PipeCommand
    from pscp.transfer.terms.copy_terms import JobTerms

    AnyCommand: TypeAlias = "Command | FanOut | PipeCommand | Measure | Clean | Connections"

_RSYNCS_FORCE = (
    "rsync's --force is what --delete does here: a folder goes for a file, and what else the "
    "source has not"
)


class Command(NamedTuple):
    """A command line that makes sense."""

    sources: tuple[Location, ...]
    destination: Location
    options: Options


class FanOut(NamedTuple):
    """A command line that copies to several destinations."""

    sources: tuple[Location, ...]
    destinations: tuple[Location, ...]
    options: Options
    max_hosts: int | None


def _unchanged(result: Result) -> Result:
    return result


class OtherCommand(NamedTuple):
    """How another command than pscp, as `pscp-run -n`, makes a copy and tells of it; or
    a replication, for which `terms` and `judged` say nothing.
    """

    terms: JobTerms | None = None
    judged: Callable[[Result], Result] = _unchanged  # what counts of the result
    name: str = "pscp"  # of the command, before each note
    said: Callable[[str], str] | None = None  # a note as that command says it
    place: str = ""  # before each line, where there are several destinations

    def reporter(self, shown: Reporter) -> Reporter:
        return shown if self.said is None else Saying(shown, self.said, self.place)


class Measure(NamedTuple):
    """A command line that asks what is best for this host."""

    host: Location
    options: Options
    save: bool


class Clean(NamedTuple):
    """A command line that asks what cut copies left below a folder."""

    where: Location
    options: Options
    remove: bool
    force: bool


class Connections(NamedTuple):
    """A command line that lists the connections that --persist keeps, or ends some."""

    host: Location | None  # the host whose connections are ended; None: of every host
    options: Options
    ends: bool


def main(argv: list[str] | None = None) -> int:
    """Run the command line; returns its exit code and prints what went wrong, if anything."""
    return run_command("pscp", make_parser, lambda words: run(parse(words), words), argv)


def parse(argv: Sequence[str]) -> AnyCommand:
    """Read a command line, or raise UsageError; looks at local sources, contacts nothing."""
    values, texts = make_parser().read(argv, '; a path that starts with "-" goes after --')
    others = {name for name in NO_COPIES if values.pop(name, False)}
    if "filters" in values:
        from pscp.options.arguments import with_files  # here: few copies have filters

        values["filters"] = with_files(
            values["filters"],
            from0=values.get("from0", False),
            stdin_is_taken="-" in texts or values.get("files_from") == "-",
        )
    is_fan_out, max_hosts = values.pop("fan_out", False), values.pop("max_hosts", None)
    if "-" in texts and (is_fan_out or len(texts) > 2):
        raise UsageError(ONE_STREAM)
    with as_typed():
        options = Options(**values)
    if is_fan_out or max_hosts is not None:
        if others or not is_fan_out:
            raise UsageError("--max-hosts goes with --fan-out, and that with a copy alone")
        return as_fan_out(texts, options, max_hosts)
    if others:
        return as_no_copy(texts, options, others)
    if "-" in texts and len(texts) == 2:
        from pscp.cli.pipe import file_command

        return file_command(texts[0], texts[1], options)
    return as_copy(texts, options)


def as_no_copy(
    texts: list[str], options: Options, others: set[str]
) -> Measure | Clean | Connections:
    """Read a command line that has these of the options "instead of a copy"."""
    check_no_cluster(options, f"--{min(others).replace('_', '-')}: it is for copies")
    if others & {"disconnect", "list_connections"}:
        return as_connections(texts, options, others)
    if "save" in others and "measure" not in others:
        raise UsageError("--save goes with --measure: it keeps what that found best")
    if others & {"yes", "force"} and "clean" not in others:
        hint = _RSYNCS_FORCE if "force" in others else ""
        raise UsageError("--yes and --force go with --clean: they remove what that lists", hint)
    if others >= {"measure", "clean"}:
        raise UsageError("--measure and --clean do not go together: give one of them")
    if "measure" in others:
        if len(texts) != 1:
            raise UsageError("--measure takes one HOST", "usage: pscp --measure [options] HOST")
        return Measure(parse_host(texts[0]), options, "save" in others)
    if len(texts) != 1:
        raise UsageError("--clean takes one folder", "usage: pscp --clean [options] HOST:DIR")
    return Clean(parse_location(texts[0]), options, "yes" in others, "force" in others)


def as_connections(texts: list[str], options: Options, others: set[str]) -> Connections:
    if len(others) > 1:
        raise UsageError("--list-connections and --disconnect go with nothing else of their kind")
    ends = "disconnect" in others
    if len(texts) > ends:
        usage = "pscp --disconnect [HOST]" if ends else "pscp --list-connections"
        raise UsageError(f"{texts[-1]}: one word too many", f"usage: {usage}")
    return Connections(parse_host(texts[0]) if texts else None, options, ends)


def as_copy(texts: list[str], options: Options) -> Command:
    locations = [parse_location(text) for text in texts]
    if len(locations) < 2:
        missing = "a destination is" if locations else "a source and a destination are"
        raise UsageError(f"{missing} missing", _taken(options) or f"usage: {USAGE}")
    *sources, destination = locations
    for each in sources:
        if each.is_remote and destination.is_remote and os.path.lexists(each.text):
            hint = f"./{each.text} is the file, and ssh://HOST/PATH always a host's"
            raise UsageError(f"{each.text} is a file here, and reads as HOST:PATH", hint)
    check_direction(sources, destination)
    check_folders(sources, options)
    return Command(tuple(sources), destination, options)


def _taken(options: Options) -> str:
    """Return what took a word that was meant as a source, by a letter that rsync has as well."""
    if options.identities:
        return f"-i takes {options.identities[-1]!r} for a private key; rsync's -i is -vv here"
    if options.program != "ssh":
        return f"-S takes {options.program!r} for the ssh program; rsync's -S is so anyway"
    if options.jump is not None:
        return f"-J takes {options.jump!r} for a jump host; rsync's -J is about links' times"
    if options.config_file and not os.path.isfile(options.config_file):
        return f"-F takes {options.config_file!r} for an ssh_config; rsync's -F is --exclude here"
    return ""


def as_fan_out(texts: list[str], options: Options, max_hosts: int | None) -> FanOut:
    usage = "usage: pscp --fan-out [options] SOURCE... HOST:PATH..."
    locations = [parse_location(text) for text in texts]
    first = next((at for at, each in enumerate(locations) if each.is_remote), len(locations))
    sources, destinations = tuple(locations[:first]), tuple(locations[first:])
    if not sources or not destinations:
        missing = "a destination" if sources else "a source on this machine"
        raise UsageError(f"{missing} is missing", usage)
    for each in destinations:
        if not each.is_remote:
            what = f"{each.text}: a destination is HOST:PATH, and a source stands before them all"
            raise UsageError(what, usage)
    check_folders(sources, options)
    return FanOut(sources, destinations, options, max_hosts)


def check_folders(sources: Sequence[Location], options: Options) -> None:
    """Raise UsageError for a folder here that would not be copied."""
    for source in sources:
        needs_r = not (source.is_remote or options.recursive or options.files_from)
        if needs_r and os.path.isdir(source.path):
            hint = "-r copies folders, -a with everything"
            raise UsageError(f"{source.path} is a folder: use -r", hint)


def run(
    command: AnyCommand,
    words: Sequence[str] = (),
    by: OtherCommand | None = None,
) -> int:
    """Do what a command line with these words asks for; returns the exit code.

    `by` is for a copy to one destination.
    """
    from pscp.endpoint.frames import system

    system.raise_descriptor_limit()
    if isinstance(command, Command):
        return run_copy(command, words, by or OtherCommand())
    if isinstance(command, FanOut):
        from pscp.cli import fan_out

        return fan_out.run(*command, words)
    if isinstance(command, Measure):
        return run_measure(command)
    if isinstance(command, Clean):
        return run_clean(command)
    if isinstance(command, Connections):
        return run_connections(command)
    from pscp.cli.pipe import move

    return move(command, "pscp", words)


def run_measure(command: Measure) -> int:
    from pscp.cli import measure_report
    from pscp.measuring.measure import measure

    options = command.options
    note = Notes().note
    with (
        raise_on_signals("nothing is kept of a measurement"),
        log.show_records(options.debug, note),
        measure_report.show_steps(options) as say,
    ):
        found = measure(command.host, options, save=command.save, say=say, note=note)
    measure_report.show(found, options.progress == "json")
    return 0


def run_clean(command: Clean) -> int:
    from pscp.calls.cleaning import clean
    from pscp.cli import earlier_runs, measure_report

    where, options = command.where, command.options
    note = Notes().note
    with (
        raise_on_signals("run it again for the rest"),
        log.show_records(options.debug, note),
        measure_report.show_steps(options) as say,
    ):
        say(f"looking below {where.text}")
        found = clean(where, options, remove=command.remove, force=command.force, note=note)
    earlier_runs.show_leftovers(found, where, options)
    return 0 if found.ok else 1


def run_connections(command: Connections) -> int:
    from pscp.cli import earlier_runs

    if command.ends:
        earlier_runs.disconnect(command.host, command.options)
    else:
        earlier_runs.show_connections()
    return 0


class Saying(Passing):
    """Hands notes on as another command says them, and lines with the place they are about."""

    def __init__(self, inner: Reporter, said: Callable[[str], str], place: str) -> None:
        super().__init__(inner)
        self._said, self._before = said, f"{place}: " if place else ""

    def line(self, text: str) -> None:
        super().line(self._before + text)

    def file(self, path: str, outcome: Outcome, digest: str, is_new: bool = True) -> None:
        super().file(self._before + path, outcome, digest, is_new)

    def note(self, text: str) -> None:
        super().note(self._said(text))


def run_copy(command: Command, words: Sequence[str], by: OtherCommand) -> int:
    from pscp.calls.api import copy

    options = command.options
    with shown_run(by.name, words, options) as (shown, kept):
        reporter = by.reporter(shown)
        ends = command.sources, command.destination
        found = copy(
            *ends, options=options, reporter=reporter, keep_digests=False, raises=False,
            terms=by.terms,
        )  # fmt: skip
        result = by.judged(found)
        reporter.stop(None)
        line = closing_line(result, options, command.destination.text)
        conclude(line, table(result, options), options, kept)
        code = 0 if result.ok else 1
        kept.write(f"ended: exit code {code}")
    return code
