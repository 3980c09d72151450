"""The times of a line of a crontab, crontab(5). Pure.

Times are local and without a zone: in the hour that a change of the clocks leaves out or repeats,
cron itself is not exact either. Not here: where lines come from (timers.py).
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator

_MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
_DAYS = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"]
_FIELDS: tuple[tuple[int, int, list[str]], ...] = (
    (0, 59, []), (0, 23, []), (1, 31, []), (1, 12, _MONTHS), (0, 7, _DAYS),
)  # fmt: skip
_NICKNAMES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_FARTHEST_DAYS = 9 * 366  # 29 February, over a year of 1900's kind


def split_line(line: str, *, has_user: bool) -> tuple[str, str] | None:
    """Return the times and the command of a crontab's line; None for a line of another kind."""
    words = line.split(None, 1)
    number = 1 if words and words[0].startswith("@") else 5
    parts = line.split(None, number + has_user)
    is_times = bool(parts) and (number == 1 or parts[0][0] in "*0123456789")
    if not is_times or len(parts) <= number + has_user:
        return None
    return " ".join(parts[:number]), parts[-1].strip()


def times(expression: str, after: datetime.datetime) -> Iterator[datetime.datetime]:
    """Yield the times of an expression after this one. Raises ValueError for what is none."""
    texts = _NICKNAMES.get(expression.lower(), expression).split()
    if len(texts) != len(_FIELDS):
        raise ValueError(f"{expression!r} is no time of a crontab")
    minutes, hours, days, months, weekdays = (
        _values(text.lower(), *field) for text, field in zip(texts, _FIELDS, strict=True)
    )
    weekdays = {each % 7 for each in weekdays}
    either = not (texts[2].startswith("*") or texts[4].startswith("*"))
    for number in range(_FARTHEST_DAYS):
        day = after.date() + datetime.timedelta(days=number)
        of_both = (day.day in days, day.isoweekday() % 7 in weekdays)
        if day.month not in months or not (any(of_both) if either else all(of_both)):
            continue
        for hour in sorted(hours):
            for minute in sorted(minutes):
                found = datetime.datetime.combine(day, datetime.time(hour, minute))
                if found > after:
                    yield found


def _values(text: str, low: int, high: int, names: list[str]) -> set[int]:
    """Return the values of a field such as "*/5", "mon-fri" or "1,15-20/2"."""
    found: set[int] = set()
    for part in text.split(","):
        span, slash, step_text = part.partition("/")
        step = int(step_text) if slash else 1
        if span == "*":
            first, last = low, high
        else:
            from_text, dash, to_text = span.partition("-")
            first = _value(from_text, low, names)
            last = _value(to_text, low, names) if dash else (high if slash else first)
        if not (low <= first <= last <= high and step > 0):
            raise ValueError(f"{part!r} is out of range")
        found.update(range(first, last + 1, step))
    return found


def _value(text: str, low: int, names: list[str]) -> int:
    if text in names:
        return names.index(text) + low
    if not (text.isascii() and text.isdigit()):
        raise ValueError(f"{text!r} is no number")
    return int(text)
