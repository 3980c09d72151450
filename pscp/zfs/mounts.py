"""Where zfs receive has no -u or no -x: what those would have prevented is set right afterwards.

-u leaves what is received unmounted, and -x leaves out the properties of the stream that say where
a dataset is seen (settings.PLACING). OpenZFS has both since 0.8.

Not here: the flags of zfs receive (commands.py). Read next: commands.py.
"""

from __future__ import annotations

from collections.abc import Callable

from pscp.zfs import commands, error_messages
from pscp.zfs.commands import Speech
from pscp.zfs.inventory import Zfs
from pscp.zfs.plan import Stream


def settle(
    zfs: Zfs, speech: Speech, stream: Stream, is_new: bool, note: Callable[[str], None]
) -> None:  # fmt: skip
    """Unmount a dataset that this stream made, and undo the placing properties that it brought."""
    unmount = is_new and not (speech.common.unmounted or speech.settings.mount)
    take_back = not (speech.common.leaves or speech.settings.keep_mountpoints)
    if not unmount and not take_back:
        return
    asked = zfs.run(*commands.placing_of(stream.dest))
    if asked.status != 0:
        note(f"{stream.dest}: its mountpoint is not known: {error_messages.complaint(asked.err)}")
    of = _properties(asked.out.decode("utf-8", "replace"))
    if of["type"][0] != "filesystem":
        return
    todo: list[commands.Words] = []
    if unmount and of["mounted"][0] == "yes":
        todo += commands.unmounted(stream.dest)
    if take_back:
        came = [name for name, (_, source) in of.items() if source == "received"]
        todo += [commands.not_received(stream.dest, name) for name in came]
    for words in todo:
        ran = zfs.run(*words)
        if ran.status != 0:
            said = error_messages.complaint(ran.err)
            note(f"{stream.dest}: zfs {' '.join(words[:2])} failed after it was received: {said}")


def _properties(text: str) -> dict[str, tuple[str, str]]:
    """Return the value and the source of each property that zfs was asked for."""
    found = {"type": ("", ""), "mounted": ("", "")}
    for line in text.splitlines():
        name, *rest = line.split("\t")
        if len(rest) == 2:
            found[name] = rest[0], rest[1]
    return found
