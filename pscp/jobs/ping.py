"""Tells a URL that a job begins and how it ended, in the manner of healthchecks.

URL/start at the begin, URL at a success, URL/EXITCODE at a failure, each with the report as its
body. A server that is slow, silent or broken delays a run's end by PATIENCE_S at most, and never
makes it fail.

Not here: what the report says (report.py), which URLs may be given (schema.py).
"""

from __future__ import annotations

import http.client
import threading
import urllib.error
import urllib.parse
import urllib.request

PATIENCE_S = 10.0  # for all pings of a run that are still under way at its end
_ANSWER_S = 4.0  # for one answer: two attempts fit
_BODY_MAX_BYTES = 10_000  # what healthchecks keeps


class Pings:
    """The pings of one run of a job, which go out one after the other. One thread calls."""

    def __init__(self, url: str) -> None:
        self._url = urllib.parse.urlsplit(url)
        self._last: threading.Thread | None = None
        self._why = ""  # the last one failed; written by its thread

    def start(self) -> None:
        self._send("/start", "")

    def end(self, exit_code: int, body: str) -> str:
        """Tell how the run ended; return "", or why nobody heard it."""
        last = self._send(f"/{exit_code}" if exit_code else "", body)
        last.join(PATIENCE_S)
        return "no answer in time" if last.is_alive() else self._why

    def _send(self, suffix: str, body: str) -> threading.Thread:
        path = self._url.path.rstrip("/") + suffix if suffix else self._url.path
        url, before = self._url._replace(path=path).geturl(), self._last

        def run() -> None:
            if before is not None:
                before.join()  # a start that came after the end would stand for a run under way
            self._why = _post(url, body) and _post(url, body)

        # A daemon: a server that answers a byte at a time keeps no run from ending.
        self._last = threading.Thread(target=run, name="ping", daemon=True)
        self._last.start()
        return self._last


def _post(url: str, body: str) -> str:
    """Post a text. Return "", or what went wrong."""
    data = body.encode("utf-8", "backslashreplace")[:_BODY_MAX_BYTES]
    headers = {"Content-Type": "text/plain; charset=utf-8", "User-Agent": "pscp-run"}
    try:
        request = urllib.request.Request(url, data, headers)
        with urllib.request.urlopen(request, timeout=_ANSWER_S):
            return ""
    except urllib.error.HTTPError as error:
        error.close()
        return f"{error.code} {error.reason}".partition("\n")[0]
    except (OSError, ValueError, http.client.HTTPException) as error:
        why = str(getattr(error, "reason", error)) or type(error).__name__
        return " ".join(why.split())
