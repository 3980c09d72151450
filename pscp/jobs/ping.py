"""Tells a URL that a job begins and how it ended, in the manner of healthchecks.

URL/start at the begin, URL at a success, URL/EXITCODE at a failure, each with the report as its
body. A server that is slow, silent or broken delays a run's end by PATIENCE_S at most, and never
makes it fail.

Not here: what the report says (report.py).
"""

from __future__ import annotations

import contextlib
import http.client
import threading
import time
import urllib.error
import urllib.parse
import urllib.request

PATIENCE_S = 10.0  # for all pings of a run that are still under way at its end
_ANSWER_S = 4.0  # for one answer: two attempts fit
_BODY_MAX_BYTES = 10_000  # what healthchecks keeps


class Pings:
    """The pings of one run of a job, which go out one after the other. One thread calls."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._last: threading.Thread | None = None
        self._why = ""  # the last one failed; written by its thread

    def start(self) -> None:
        self._send("/start", "")

    def end(self, exit_code: int, body: str) -> str:
        """Tell how the run ended; return "", or why nobody heard it."""
        self._send(f"/{exit_code}" if exit_code else "", body)
        assert self._last is not None
        self._last.join(PATIENCE_S)
        return "no answer in time" if self._last.is_alive() else self._why

    def _send(self, suffix: str, body: str) -> None:
        before = self._last

        def run() -> None:
            if before is not None:
                before.join()  # a start that came after the end would stand for a run under way
            self._why = _post(_with_suffix(self._url, suffix), body)

        self._last = threading.Thread(target=run, name="ping", daemon=True)
        self._last.start()


def _with_suffix(url: str, suffix: str) -> str:
    parts = urllib.parse.urlsplit(url)
    return parts._replace(path=parts.path.rstrip("/") + suffix if suffix else parts.path).geturl()


def _post(url: str, body: str) -> str:
    """Post a text, twice if need be. Return "", or what went wrong."""
    data = body.encode("utf-8", "backslashreplace")[:_BODY_MAX_BYTES]
    why, deadline_s = "", time.monotonic() + _ANSWER_S
    for _ in range(2):
        try:
            request = urllib.request.Request(
                url, data, {"Content-Type": "text/plain; charset=utf-8", "User-Agent": "pscp-run"}
            )
            with _opener().open(request, timeout=_ANSWER_S):
                return ""
        except (OSError, ValueError, http.client.HTTPException) as error:
            why = str(getattr(error, "reason", "") or error or type(error).__name__)
            with contextlib.suppress(AttributeError):
                error.close()  # type: ignore[union-attr]  # an HTTPError is an answer too
        if time.monotonic() > deadline_s:
            break
    return why


def _opener() -> urllib.request.OpenerDirector:
    """Return what knows HTTP only: urllib's own would follow an answer to an ftp: URL."""
    made = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler,
        urllib.request.HTTPHandler,
        urllib.request.HTTPSHandler,
        urllib.request.HTTPRedirectHandler,
        urllib.request.HTTPDefaultErrorHandler,
        urllib.request.HTTPErrorProcessor,
        urllib.request.UnknownHandler,
    ):
        made.add_handler(handler())
    return made
