"""serve.toml: what becomes of a sound one, and how each mistake in another is told.

Not here: what is common to files in TOML (../unit/test_jobs_config.py).
"""

from __future__ import annotations

import contextlib
import json
import re
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pscp import UsageError
from pscp.serve.server.config import SERVER, USER, load, unready, user_of
from pscp.serve.settings import RULES, Settings

HASH = "$argon2id$v=19$m=65536,t=3,p=4$c2FsdHNhbHQ$aGFzaA"
LISTEN = 'listen = "127.0.0.1:2222"\n'
ALICE = '[user.alice]\nfolder = "in"\nrules = "write"\nkeys = "alice.pub"\n'


def settings_of(folder: Path, text: str) -> Settings:
    file = folder / "serve.toml"
    file.write_text(text, "utf-8")
    return load(str(file))


def mistakes(folder: Path, text: str) -> list[tuple[int, str]]:
    with pytest.raises(UsageError) as caught:
        settings_of(folder, text)
    file = re.escape(str(folder / "serve.toml"))
    found = [
        re.fullmatch(rf"{file}:([0-9]+): (.+)", each) for each in caught.value.message.split("\n")
    ]
    return [(int(each[1]), each[2]) for each in found if each]


def test_what_the_issue_shows(tmp_path: Path) -> None:
    its = settings_of(
        tmp_path,
        'listen = ["0.0.0.0:2222", "[::]:22", ":23"]\n'
        'host-keys = ["/etc/pscp-serve/host_ed25519"]\n'
        'memory = "1G"\n[user.alice]\nkeys = "alice.pub"\nfolder = "/srv/incoming/alice"\n'
        'rules = ["read", "write"]\n',
    )
    assert its.listen == (("0.0.0.0", 2222), ("::", 22), ("0.0.0.0", 23))
    assert (its.host_keys, its.memory) == (("/etc/pscp-serve/host_ed25519",), 1 << 30)
    alice = its.users["alice"]
    assert (alice.folder, alice.rules) == ("/srv/incoming/alice", frozenset(["read", "write"]))
    assert alice.keys == str(tmp_path / "alice.pub")


def test_every_key_is_taken(tmp_path: Path) -> None:
    its = settings_of(
        tmp_path,
        LISTEN
        + f"""
        host-keys = "k"
        state = "s"
        run-as = "root"
        workers = 3
        memory = 65536
        keep-parts = "2d"
        after-upload = ["/bin/true", "-x"]
        after-upload-jobs = 4
        uploads = "u.jsonl"
        log = "l.jsonl"
        metrics = "m.prom"
        command = "/bin/false"
        connections = 10
        per-address = 11
        per-user = 12
        open-files = 13
        idle = "1h"
        login-time = 7
        proxy = ["192.0.2.1", "2001:db8::/32"]
        [user.a]
        folder = "f"
        rules = ["read", "append-only"]
        password = "{HASH}"
        ca = "ca"
        quota-bytes = "10G"
        quota-files = 5
        rate = "8M"
        largest = "1G"
        names = ["*.rec"]
        addresses = "10.0.0.0/8"
        mode = "600"
        [user.b]
        folder = "/b"
        rules = "write"
        keys = "b"
        """,
    )
    here = str(tmp_path)
    assert (its.state, its.run_as, its.workers, its.memory) == (f"{here}/s", "root", 3, 65536)
    assert (its.keep_parts, its.idle, its.login_time) == (172800, 3600, 7)
    assert (its.after_upload, its.after_upload_jobs) == (("/bin/true", "-x"), 4)
    assert its.command == ("/bin/false",)
    assert (its.uploads, its.log) == (f"{here}/u.jsonl", f"{here}/l.jsonl")
    assert (its.connections, its.per_address, its.per_user, its.open_files) == (10, 11, 12, 13)
    assert its.proxy == ("192.0.2.1/32", "2001:db8::/32")
    a = its.users["a"]
    assert (a.rate, a.largest, a.quota_bytes, a.quota_files) == (1_000_000, 1 << 30, 10 << 30, 5)
    assert (a.password, a.mode, a.addresses, a.names) == (HASH, 0o600, ("10.0.0.0/8",), ("*.rec",))
    assert its.users["b"].mode == 0o640


def test_an_owner_is_named_or_numbered(tmp_path: Path) -> None:
    for text, owner in (
        ("root", (0, 0)),
        ("12:34", (12, 34)),
        ("root:7", (0, 7)),
        ("999999", (999999, 999999)),
    ):
        its = settings_of(tmp_path, LISTEN + ALICE + f'owner = "{text}"\n')
        assert its.users["alice"].owner == owner


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("memry = 1\n" + LISTEN + ALICE, 1, "there is no 'memry'; did you mean memory?"),
        (LISTEN + ALICE + "kyes = 'x'\n", 6, "there is no 'kyes'; did you mean keys?"),
        (LISTEN + "mode = '600'\n" + ALICE, 2, "mode belongs to a user"),
        (LISTEN + ALICE + "memory = '1G'\n", 6, "memory is the server's"),
        ("listen = 'here:22'\n" + ALICE, 1, "'here' is no address"),
        ("listen = '22'\n" + ALICE, 1, "is no address and port"),
        ("listen = [':22', ':99999']\n" + ALICE, 1, "is no address and port"),
        (ALICE, 1, "listen is missing"),
        (LISTEN, 1, "there is no user"),
        (LISTEN + ALICE.replace("write", "wirte"), 4, "rules: must be 'read', 'write' or"),
        (LISTEN + ALICE.replace("alice]", '"../x"]'), 2, "a user's name has"),
        (LISTEN + ALICE.replace("alice]", "-x]"), 2, "a user's name has"),
        (LISTEN + '[user.a]\nkeys = "x"\nrules = "read"\n', 2, "folder is missing"),
        (LISTEN + '[user.a]\nkeys = "x"\nfolder = "f"\n', 2, "rules is missing"),
        (LISTEN + '[user.a]\nrules = "read"\nfolder = "f"\n', 2, "nobody could log in"),
        (LISTEN + ALICE + "password = 'secret'\n", 6, "is no argon2 hash; pscp-serve --hash"),
        (LISTEN + ALICE + "mode = '999'\n", 6, "is no mode"),
        (LISTEN + ALICE + "mode = 0o640\n", 6, "mode: must be a text"),
        (LISTEN + ALICE + "owner = 'no such'\n", 6, "no such user or group"),
        (LISTEN + "run-as = 'root'\n" + ALICE + "owner = 'root'\n", 3, "does not go with run-as"),
        (LISTEN + ALICE + "addresses = '300.0.0.0/8'\n", 6, "is no network"),
        (LISTEN + ALICE + "quota-bytes = '10X'\n", 6, "is not a size"),
        (LISTEN + ALICE + "rate = 'fast'\n", 6, "is not a rate"),
        (LISTEN + "per-user = 0\n" + ALICE, 2, "per-user: must be greater than"),
        (LISTEN + "idle = 'long'\n" + ALICE, 2, "is not a time"),
        (LISTEN + "user = 3\n", 2, "user: must be a table"),
        (LISTEN + "x = \n", 2, "Invalid value"),
    ],
)
def test_a_mistake_is_told_with_its_line(tmp_path: Path, text: str, line: int, said: str) -> None:
    found = mistakes(tmp_path, text)
    assert [where for where, what in found if said in what] == [line], found
    assert len(found) == 1, found


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*USER]), inner),
    max_leaves=5,
)


@given(st.sampled_from([*SERVER, "user", "x"]), st.sampled_from([*USER, "x"]), VALUES)
def test_whatever_a_key_is_it_is_taken_or_a_mistake(key: str, its: str, value: object) -> None:
    with tempfile.TemporaryDirectory() as name:
        for text in (f"{key} = {toml(value)}\n{ALICE}", f"{LISTEN}{ALICE}{its} = {toml(value)}\n"):
            try:
                settings_of(Path(name), text)
            except UsageError as error:
                assert "serve.toml:" in error.message


@given(VALUES)
def test_whatever_a_command_prints_is_a_user_or_none(value: object) -> None:
    with contextlib.suppress(UsageError):
        assert user_of("x", value).name == "x"


def toml(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {toml(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return f"[{', '.join(map(toml, value))}]"
    return json.dumps(value) if value is not None else "inf"


def test_every_mistake_is_told_at_once(tmp_path: Path) -> None:
    found = mistakes(tmp_path, "lisen = ':22'\nidle = 'x'\n" + ALICE + "rate = 'x'\n")
    assert [line for line, _ in found] == [1, 1, 2, 7]


def test_a_user_of_a_command(tmp_path: Path) -> None:
    its = {"folder": "/srv/x", "rules": ["write"], "password": HASH, "rate": "8M"}
    assert user_of("x", its).rate == 1_000_000
    for wrong in ({**its, "rules": "all"}, {**its, "more": 1}, {"folder": "/srv/x"}, 3, {}):
        with pytest.raises(UsageError):
            user_of("x", wrong)


def test_what_is_not_there_yet_is_told_by_check_alone(tmp_path: Path) -> None:
    tells = 'after-upload = ["/none/such"]\ncommand = ["sh"]\nuploads = "none/such"\n'
    its = settings_of(tmp_path, LISTEN + tells + ALICE)
    assert [*unready(its)] == [
        f"user.alice: {tmp_path}/in is no folder",
        f"user.alice: {tmp_path}/alice.pub cannot be read",
        "after-upload: /none/such is no program",
        f"uploads: there is no folder {tmp_path}/none",
    ]
    its = settings_of(tmp_path, LISTEN + ALICE)
    (tmp_path / "in").mkdir()
    (tmp_path / "alice.pub").touch()
    assert [*unready(its)] == []


def test_the_rules_are_those_of_the_settings() -> None:
    assert RULES == ("read", "write", "append-only")
