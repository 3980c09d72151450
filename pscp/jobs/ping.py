"""Tells a URL that a job begins and how it ended, in the manner of healthchecks.

URL/start at the begin, URL at a success, URL/EXITCODE at a failure, each with the report as its
body. A server that is slow, silent or broken delays a run's end by PATIENCE_S at most, and never
makes it fail.

Not here: what the report says (report.py), which URLs may be given (schema.py).
"""

from __future__ import annotations

import http.client
import queue
import threading
import urllib.error
import urllib.parse
import urllib.request

PATIENCE_S = 10.0  # for all pings of a run that are still under way at its end
_ANSWER_S = 4.0  # for one answer: two attempts fit
_BODY_MAX_BYTES = 10_000  # what healthchecks keeps


class Pings:
    """The pings of one run of a job, the first of which goes out at once. One thread calls."""

    def __init__(self, url: str) -> None:
        self._url = urllib.parse.urlsplit(url)
        self._end = queue.SimpleQueue[tuple[str, str]]()
        self._why = ""  # the last one failed; written by the thread
        # A daemon: a server that answers a byte at a time keeps no run from ending.
        self._thread = threading.Thread(target=self._run, name="ping", daemon=True)
        self._thread.start()

    def end(self, exit_code: int, body: str) -> str:
        """Tell how the run ended; return "", or why nobody heard it."""
        self._end.put((f"/{exit_code}" if exit_code else "", body))
        self._thread.join(PATIENCE_S)
        return "no answer in time" if self._thread.is_alive() else self._why

    def _run(self) -> None:
        """Send one after the other: a start after the end would stand for a run under way."""
        self._send("/start", "")
        self._why = self._send(*self._end.get())

    def _send(self, suffix: str, body: str) -> str:
        path = self._url.path.rstrip("/") + suffix if suffix else self._url.path
        url = self._url._replace(path=path).geturl()
        return _post(url, body) and _post(url, body)


def _post(url: str, body: str) -> str:
    """Post a text. Return "", or what went wrong."""
    data = body.encode("utf-8", "backslashreplace")[:_BODY_MAX_BYTES]
    headers = {"Content-Type": "text/plain; charset=utf-8", "User-Agent": "pscp-run"}
    try:
        request = urllib.request.Request(url, data, headers)  # noqa: S310 - http(s): schema.py
        with urllib.request.urlopen(request, timeout=_ANSWER_S):  # noqa: S310 - the same
            return ""
    except urllib.error.HTTPError as error:
        error.close()
        return f"{error.code} {error.reason}".partition("\n")[0]
    except (OSError, ValueError, http.client.HTTPException) as error:
        why = str(getattr(error, "reason", error)) or type(error).__name__
        return " ".join(why.split())
