"""What `import pscp` offers: names, errors, and clear words for arguments that make no sense."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import json
import pickle
import pydoc
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

import pscp
from pscp.ground import errors
from pscp.ground.counters import LiveCounters
from pscp.ground.locations import Location, as_location
from pscp.progress.callbacks import ProgramReporter
from pscp.progress.progress import Reporter, checked

ERRORS = [n for n, v in vars(errors).items() if inspect.isclass(v) and issubclass(v, Exception)]


def test_every_name_is_there_and_every_error_among_them() -> None:
    """A12."""
    assert set(ERRORS) < set(pscp.__all__) == {name for name in pscp.__all__ if hasattr(pscp, name)}
    assert set(pscp.__all__) | {"aio", "errors", "__version__"} <= set(dir(pscp))
    assert pscp.__version__[0].isdigit()
    with pytest.raises(AttributeError, match="has no attribute 'copie'"):
        pscp.copie  # type: ignore[attr-defined]  # noqa: B018


@pytest.mark.parametrize(
    "kind",
    [pscp.Counters, pscp.Delivery, pscp.Difference, pscp.FileEvent, pscp.Result, pscp.Verified],
)
def test_the_types_of_what_functions_get_can_be_imported(kind: Any) -> None:
    """For their annotations."""
    types = " ".join(str(field.type) for field in dataclasses.fields(kind))
    named = {*re.findall(r"[A-Z]\w+", types)}
    assert named - {"None"} <= {*pscp.__all__}


def test_help_shows_what_there_is() -> None:
    """A13."""
    shown = pydoc.plain(pydoc.render_doc(pscp))
    for line in ("copy(", "class Session(", "replicate(", "class AuthenticationError("):
        assert line in shown


def test_to_import_it_loads_nothing() -> None:
    program = (
        "import sys; before = set(sys.modules); import pscp; dir(pscp)\n"
        "sys.exit(str(set(sys.modules) - before - {'pscp', '__future__'} or ''))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert done.stderr.strip() == b""


def test_aio_is_imported_by_its_name() -> None:
    program = "import pscp.aio, pscp; from pscp.aio import copy; assert copy is pscp.aio.copy"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_an_error_that_may_pass_says_so() -> None:
    """A15: `retry` is for a program that waits, and changes nothing meanwhile."""
    passing = {name for name in ERRORS if getattr(errors, name).retry}
    assert passing == {
        "AgentFailed", "ConnectionLost", "CopyRunning", "DatasetBusy", "SourceChanged", "StreamCut",
        "Unreachable",
    }  # fmt: skip
    assert pscp.Failure("a", "SourceChanged", "").retry
    assert not pscp.Failure("a", "SystemFailure", "").retry


def pickled(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


@pytest.mark.parametrize("name", ERRORS)
@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, pickled])
def test_h5_every_error_survives_pickle_and_copy(name: str, again: Callable[..., Any]) -> None:
    """A process pool hands errors on so."""
    kind: Any = getattr(errors, name)
    result: Any = pscp.Result(failures=(pscp.Failure("a", "SourceChanged", "changed"),))
    if name == "FanOutFailed":
        unreachable = pscp.Unreachable("no route", "a hint")
        result = (pscp.Delivery("host:", None, unreachable, 1.0, pscp.Counters()),)
    given = {
        "result": result, "status": 3, "path": "a/b", "errno": 28, "message": "what", "hint": "do",
    }  # fmt: skip
    wanted = inspect.signature(kind).parameters
    error = kind(**{each: value for each, value in given.items() if each in wanted})
    twin = again(error)
    assert type(twin) is kind and twin.args == ("what",) and twin.text == "what\ndo"
    assert repr(vars(twin)) == repr(vars(error))
    assert (twin.retry, twin.exit_code) == (error.retry, error.exit_code)


def test_a1_a_snapshot_of_counters_is_a_plain_value() -> None:
    counters = LiveCounters(bytes_done=3)
    counters.lanes_moved = lambda: [3]
    counters.begin_file(1, "a", 10)
    now = counters.snapshot()
    counters.add(bytes_done=1)
    counters.add_to_file(1, 5)
    assert type(now) is pscp.Counters and now.bytes_done == 3 and now.large[1].done_bytes == 0
    assert [*vars(now)] == [each.name for each in dataclasses.fields(now)]
    for twin in (pickled(now), copy.deepcopy(now)):
        assert twin == now and twin.large == now.large and twin.large is not now.large
    delivery = dataclasses.asdict(pscp.Delivery("host:", pscp.Result(), None, 1.0, now))
    assert json.loads(json.dumps(delivery))["counters"]["bytes_done"] == 3
    assert "lanes_moved" not in repr(now)
    with pytest.raises(dataclasses.FrozenInstanceError):
        now.bytes_done = 4  # type: ignore[misc]


def test_what_a_copy_and_a_fan_out_return_is_json() -> None:
    """Also where a copy ended with an error, and of a name that is no UTF-8."""
    failed = pscp.Result(
        files=1, failures=(pscp.Failure("b\udcff", "FileError", "is no file"),),
        workers=(pscp.WorkerTotals("n1 (7)"),),
    )  # fmt: skip
    assert json.loads(json.dumps(failed.as_dict())) == {
        **dataclasses.asdict(failed), "ok": False, "failures": [vars(failed.failures[0])],
        "workers": [vars(pscp.WorkerTotals("n1 (7)"))],
    }  # fmt: skip
    gone = pscp.Unreachable("no route", "a hint")
    for result, error, wanted in (
        (failed, None, {"ok": False, "error": None, "files": 1}),
        (None, gone, {"ok": False, "error": "Unreachable", "message": "no route"}),
    ):
        delivery = pscp.Delivery("host:", result, error, 1.0, pscp.Counters())
        found = json.loads(json.dumps(delivery.as_dict()))
        assert found.items() >= {"destination": "host:", "seconds": 1.0, **wanted}.items()


def test_what_differs_is_not_ok() -> None:
    assert not pscp.Result(differing=1).ok
    checked(pscp.Result(differing=1))  # no file has failed


def test_a4_the_hint_is_the_remedy_of_what_failed() -> None:
    """Of the one that the message names; another's would lead astray."""
    failure = pscp.Failure("a", "UnsupportedFile", "a dangling link", "leave it out with --exclude")
    other = pscp.Failure("b", "FileError", "is no file")
    for failures, hint in (
        ((failure,), "leave it out with exclude"),
        ((failure, other), "leave it out with exclude"),
        ((other, failure), ""),
        ((other,), ""),
    ):
        with pytest.raises(pscp.FilesFailed) as raised:
            checked(pscp.Result(failures=failures))
        assert raised.value.hint == hint


def test_a_result_can_be_in_a_set() -> None:
    """A46."""
    one, other = (pscp.Result(files=1, digests={"a": "b"}) for _ in range(2))
    assert {one, other} == {one}


# --- arguments


def test_a_path_is_a_location_here() -> None:
    """A10. Whatever its name is: only a text is parsed."""
    assert as_location(Path("a:b")) == Location("a:b", "a:b")
    assert as_location(PurePosixPath("a")) == as_location("a") == as_location(as_location("a"))
    assert as_location("a:b").is_remote


@pytest.mark.parametrize("value", [b"a", None, 3, object()])
def test_what_is_no_location(value: Any) -> None:
    for call in (
        lambda: pscp.copy(value, "host:"),
        lambda: pscp.copy([value], "host:"),
        lambda: pscp.copy("host:a", value),
        lambda: pscp.clean(value),
        lambda: pscp.Session(value or b"host"),  # type: ignore[arg-type]
        lambda: pscp.replicate(value, "host:a"),
    ):
        with pytest.raises(pscp.UsageError, match=r"^a (location|dataset) is a text"):
            call()


@pytest.mark.parametrize(
    "call",
    [
        lambda **fields: pscp.copy("a", "host:", **fields),
        lambda **fields: pscp.Session("host", **fields),
        lambda **fields: pscp.Session("host").copy("a", "host:", **fields),
        lambda **fields: pscp.clean("host:", **fields),
        lambda **fields: pscp.measure("host", **fields),
        lambda **fields: pscp.replicate("a", "host:a", **fields),
        lambda **fields: pscp.Options(**fields),
    ],
)
def test_a_misspelt_keyword(call: Callable[..., object]) -> None:
    """A29."""
    with pytest.raises(pscp.UsageError) as raised:
        call(recurcive=True)
    assert raised.value.message == "no such option: recurcive; did you mean recursive?"
    assert isinstance(raised.value, pscp.UnknownOption) and isinstance(raised.value, TypeError)
    assert "pscp.Options" in raised.value.hint
    with pytest.raises(pscp.UsageError, match=r"no such option: inplace$") as raised:
        call(inplace=True)
    assert "only what differs is sent" in raised.value.hint


@pytest.mark.parametrize(
    ("call", "misspelt", "meant"),
    [
        (lambda **fields: pscp.copy("a", "host:", **fields), "exlude", "exclude"),
        (lambda **fields: pscp.Session("host").copy("a", "host:", **fields), "on_fil", "on_file"),
        (lambda **fields: pscp.fan_out("a", "host:", **fields), "max_host", "max_hosts"),
        (lambda **fields: pscp.verify("manifest", "host:", **fields), "strickt", "strict"),
        (lambda **fields: pscp.clean("host:", **fields), "remoove", "remove"),
    ],
)
def test_a_misspelt_keyword_of_the_calls_own(
    call: Callable[..., object], misspelt: str, meant: str
) -> None:
    with pytest.raises(TypeError, match=f"no such option: {misspelt}; did you mean {meant}[?]"):
        call(**{misspelt: True})


@pytest.mark.parametrize(
    "call",
    [
        lambda **fields: pscp.verify("manifest", "host:", **fields),
        lambda **fields: pscp.look("host:", **fields),
        lambda **fields: pscp.clean("host:", **fields),
        lambda **fields: pscp.measure("host", **fields),
        lambda **fields: pscp.Session("host", delete=True, recursive=True).run("true", **fields),
        lambda **fields: pscp.Session("host").pipe_to("cat", **fields).__enter__(),
    ],
)
def test_a7_what_does_not_concern_a_call_is_refused(call: Callable[..., object]) -> None:
    fields: tuple[dict[str, Any], ...] = {"delete": True}, {"direct": True}
    for given in fields:
        with pytest.raises(pscp.UsageError, match="is for copies, and says nothing to ") as raised:
            call(**given)
        assert raised.value.message.startswith((*given,))


@pytest.mark.parametrize(
    ("fields", "message", "hint"),
    [
        ({"timeout_s": 5}, "timeout_s is for logging in", "run() has timeout"),
        ({"check": True}, "check is for copies", "run() returns the exit status"),
        ({"input": b""}, "no such option: input", "Session.pipe_to()"),
    ],
)
def test_what_subprocess_has_and_a_command_here_has_not(
    fields: Any, message: str, hint: str
) -> None:
    with pytest.raises(pscp.UsageError, match=message) as raised:
        pscp.Session("host").run("true", **fields)
    assert raised.value.hint.startswith(hint)


def test_where_a_call_makes_no_sense_the_hint_is_for_programs() -> None:
    with pytest.raises(pscp.UsageError, match="there is no source") as raised:
        pscp.copy([], "host:")
    assert raised.value.hint == "help(pscp.Options) lists the keywords"


def test_24_what_options_says_of_them_is_in_keywords() -> None:
    with pytest.raises(pscp.UsageError, match="strong does not go with verify") as raised:
        pscp.Options(strong=True, verify="none")
    assert "--" not in raised.value.text


@pytest.mark.parametrize(
    "call",
    [
        lambda options: pscp.copy("a", "host:", options=options),
        lambda options: pscp.Session("host", options),
        lambda options: pscp.fan_out("a", ["host:"], options=options),
        lambda options: pscp.replicate("a", "host:a", options=options),
    ],
)
def test_what_is_no_options_is_refused(call: Callable[..., object]) -> None:
    with pytest.raises(pscp.UsageError, match=r"^options must be pscp.Options, not {'archive"):
        call({"archive": True})


def test_a_usage_error_of_a_call_names_no_command() -> None:
    for call in (lambda: pscp.copy([], "host:"), lambda: pscp.Session("./a")):
        with pytest.raises(pscp.UsageError) as raised:
            call()
        assert "--help" not in raised.value.text


def test_a_fan_out_can_be_tried_again_where_each_failure_can() -> None:
    gone, refused = pscp.Unreachable("gone"), pscp.AuthenticationError("refused")
    for failed, may_retry in (((gone, gone), True), ((gone, refused), False)):
        result = [pscp.Delivery("h:", None, each, 1.0, pscp.Counters()) for each in failed]
        assert pscp.FanOutFailed("failed", result=result).retry is may_retry


def test_hints_in_the_log_speak_of_keywords(caplog: pytest.LogCaptureFixture) -> None:
    ProgramReporter(Reporter()).note("  --exclude leaves it out")
    ProgramReporter(Reporter()).note("a/ -r/b: is a dangling link")
    assert caplog.messages == ["  exclude leaves it out", "a/ -r/b: is a dangling link"]


def test_24_a_replications_errors_speak_of_keywords() -> None:
    with pytest.raises(pscp.UsageError, match=r"^prune goes with keep_last, which"):
        pscp.replicate("tank/data", "host:vault", prune="dest")


@pytest.mark.parametrize("terms", [5, 0, pscp.Options()])
def test_terms_that_are_none_are_refused(terms: Any) -> None:
    for call in (pscp.copy, pscp.Session("nowhere.invalid").copy):
        with pytest.raises(pscp.UsageError, match=r"^terms must be pscp[.]JobTerms, not "):
            call("a", "nowhere.invalid:", terms=terms)
    with pytest.raises(pscp.UsageError, match=r"^terms must be pscp[.]JobTerms, not "):
        pscp.fan_out("a", ["nowhere.invalid:"], terms=terms)


@pytest.mark.parametrize("name", ["select", "kbit_s", "moves", "expected"])
def test_terms_of_wrong_kinds_are_refused(name: str) -> None:
    given: dict[str, Any] = {name: 5}
    with pytest.raises(pscp.UsageError, match=f"^`{name}` must be "):
        pscp.JobTerms(**given)


@pytest.mark.parametrize("name", ["progress", "on_file"])
def test_what_cannot_be_called_is_refused_before_anything(name: str) -> None:
    given: dict[str, Any] = {name: 3}
    with pytest.raises(pscp.UsageError, match=rf"^{name} must be a function, not 3"):
        pscp.copy("a", "nowhere.invalid:", **given)
    with pytest.raises(pscp.UsageError, match=rf"^{name} must be a function, not 3"):
        pscp.fan_out("a", ["nowhere.invalid:"], **given)
    with pytest.raises(pscp.UsageError, match=rf"^{name} must be a function, not 3"):
        pscp.Session("nowhere.invalid").copy("a", "nowhere.invalid:", **given)


@pytest.mark.parametrize(
    ("commands", "said"),
    [
        (["", [], [""], b"true", [b"true"], 3, ["a", None]], "is a text, or a list of texts"),
        (["ls\0", ["ls", "a\0b"]], "cannot have a NUL in it"),
    ],
)
def test_what_is_no_command_is_refused_before_anybody_is_logged_in_to(
    commands: list[Any], said: str
) -> None:
    """A29."""
    session = pscp.Session("nowhere.invalid")
    for command in commands:
        for call in (session.run, session.pipe_to, session.pipe_from):
            with pytest.raises(pscp.UsageError, match=f"^a command {said}"):
                call(command)


def test_a_fan_out_that_failed_names_the_others_of_which_a_few() -> None:
    from pscp.calls.deliveries import _checked_all

    gone = pscp.Unreachable("gone")

    def message(count: int) -> str:
        names = [f"h{number}:" for number in range(count)]
        found = [pscp.Delivery(name, None, gone, 1.0, pscp.Counters()) for name in names]
        with pytest.raises(pscp.FanOutFailed) as raised:
            _checked_all(
                (*found, pscp.Delivery("good:", pscp.Result(), None, 1.0, pscp.Counters()))
            )
        return raised.value.message

    assert message(1) == "h0:: gone; 1 of 2 destinations failed"
    for named in ("dead: no route", "dead:x/: no route"):  # as a login, or the place, has it
        delivery = pscp.Delivery("dead:x/", None, pscp.Unreachable(named), 1.0, pscp.Counters())
        with pytest.raises(pscp.FanOutFailed, match=r"^dead:x/: no route$"):
            _checked_all((delivery,))
    assert message(3) == "h0:: gone; 3 of 4 destinations failed, also h1:, h2:"
    assert message(9).endswith(
        "9 of 10 destinations failed, also h1:, h2:, h3:, h4:, h5: and 3 more"
    )


def test_w2_a_call_cannot_ask_for_another_connection_than_its_session() -> None:
    """It got the connections that were there, to another server than it named."""
    session = pscp.Session("host", port=22)
    for name, value in (("port", 23), ("config_file", "other"), ("cipher", "aes128-ctr")):
        fields: Any = {name: value}
        with pytest.raises(pscp.UsageError, match=f"^{name} is for a whole session"):
            session.run("true", **fields)
        with pytest.raises(pscp.UsageError, match=f"^{name} is for a whole session"):
            session.copy("a", "host:", **fields)


def test_a_closed_session_refuses_every_call() -> None:
    session = pscp.Session("host")
    session.close()
    session.close()
    session.cancel()
    with pytest.raises(pscp.UsageError, match="the session is closed"):
        session.copy("a", "host:")
    with pytest.raises(pscp.UsageError, match="the session is closed"), session.pipe_to("cat"):
        pass
    with pytest.raises(pscp.UsageError, match="the session is closed"), session:
        pass
