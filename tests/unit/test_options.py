"""pscp.options.options: locations as scp reads them, sizes, and the bounds of every option."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pscp.ground.errors import UsageError
from pscp.ground.locations import Location, check_direction, parse_host, parse_location
from pscp.ground.values import GIB, KIB, MIB, parse_cpus, parse_size, show_size
from pscp.options.keywords import as_typed
from pscp.options.options import Options

NAMES = st.binary().filter(lambda name: b"\0" not in name).map(os.fsdecode)
HOSTS = st.from_regex(r"[a-z0-9][a-z0-9.-]{0,20}|[0-9a-f]{1,4}::[0-9a-f]{1,4}", fullmatch=True)
USERS = st.from_regex(r"[a-z_][a-z0-9_@.-]{0,10}", fullmatch=True)


@pytest.mark.parametrize(
    ("text", "user", "host", "path"),
    [
        ("host:", None, "host", ""),
        ("host:a", None, "host", "a"),
        ("host:/a:b", None, "host", "/a:b"),
        ("me@host:a@b", "me", "host", "a@b"),
        ("me@corp@host:a", "me@corp", "host", "a"),
        (r"CORP\me@host:a", r"CORP\me", "host", "a"),
        ("[::1]:a", None, "::1", "a"),
        ("me@[fe80::1%eth0]:/a", "me", "fe80::1%eth0", "/a"),
        ("[host]:a]:b", None, "host", "a]:b"),
        ("host: a\n-x", None, "host", " a\n-x"),
        ("host:\udcff", None, "host", "\udcff"),
    ],
)
def test_remote(text: str, user: str | None, host: str, path: str) -> None:
    location = parse_location(text)
    assert location == Location(text, path, host, user)
    assert location.is_remote
    assert location.login == (f"{user}@{host}" if user else host)


@pytest.mark.parametrize(
    ("text", "each"),
    [
        ("dm1,dm2:/in/", ["dm1:/in/", "dm2:/in/"]),
        ("ann@dm1,dm2,bob@dm3:", ["ann@dm1:", "dm2:", "bob@dm3:"]),
        ("[fe80::1],me@[fe80::2]:a:b,c", ["[fe80::1]:a:b,c", "me@[fe80::2]:a:b,c"]),
        ("dm1,me@[fe80::2]:a", ["dm1:a", "me@[fe80::2]:a"]),
        ("[fe80::1],dm2,[::1]:a]:b", ["[fe80::1]:a]:b", "dm2:a]:b", "[::1]:a]:b"]),
    ],
)
def test_several_hosts(text: str, each: list[str]) -> None:
    location = parse_location(text)
    assert location.text == text == location.prefix + location.path
    assert location.each_host == tuple(map(parse_location, each))
    assert location.login == ",".join(one.login for one in location.each_host)


@pytest.mark.parametrize(
    "text",
    ["a,b", "./a,b:c", "a,/b:c", "a", "./a:b", "/a:b", ":a", "-", "-x", "a/b@[c]:d", "[a", "[::1]",
     "[::1],a",
     "me@[x:y", "\udcff"],
)  # fmt: skip
def test_local(text: str) -> None:
    location = parse_location(text)
    assert location == Location(text, text)
    assert not location.is_remote
    assert location.login == ""


@pytest.mark.parametrize(
    ("text", "login", "port", "path"),
    [
        ("ssh://host", "host", None, ""),
        ("ssh://host/", "host", None, ""),
        ("ssh://host/a/b", "host", None, "a/b"),
        ("ssh://host//a", "host", None, "/a"),
        ("scp://me@host:2222/a", "me@host", 2222, "a"),
        ("ssh://[::1]:22/a", "::1", 22, "a"),
        ("ssh://me%40corp@host/a%20b%2Fc+%ff", "me@corp@host", None, "a b/c+\udcff"),
        ("ssh://host/a:b@c", "host", None, "a:b@c"),
    ],
)
def test_url(text: str, login: str, port: int | None, path: str) -> None:
    location = parse_location(text)
    assert (location.login, location.port, location.path) == (login, port, path)


@pytest.mark.parametrize(
    "text",
    [
        "", "a\0b", "\ud800", "-host:a", "-oProxyCommand=x:a", "me@-host:a", "-l@host:a", "me@:a",
        "@host:a", "[]:a", "[-x]:a", "[a]b]:c", "a\x1bb:c", "a b:c", "m\ne@host:a", "a;b:c",
        "$(x):a", "me;x@host:a", "me -x@host:a", "ssh://", "ssh:///a", "ssh://-x/a",
        "ssh://%2dx@host/a", "ssh://host:/a", "ssh://host:x/a", "ssh://host:0/a",
        "ssh://host:65536/a", "ssh://host:-1/a", "ssh://host:" + "9" * 5000 + "/a", "ssh://::1/a",
        "ssh://[::1/a", "ssh://host/%", "ssh://host/%zz", "ssh://host/a%00",
        "a,:x", ",a:x", "a,,b:x", "a,b@:x", "a,a:x", "a,b c:x", "a,-b:x", "ssh://a,b/x", "a,b::x",
        "sftp://host/a", "HTTPS://host/a", "me@::1:a",
    ],
)  # fmt: skip
def test_refused(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_location(text)
    assert caught.value.message


def test_a_location_made_by_hand_is_checked_too() -> None:
    with pytest.raises(UsageError):
        Location("x", "x", host="-oProxyCommand=x")


# "HOST::" is rsync's daemon's.
@given(
    user=st.none() | USERS, host=HOSTS,
    path=NAMES.filter(lambda name: not name.startswith((":", "//"))),
)  # fmt: skip
def test_scp_form_round_trip(user: str | None, host: str, path: str) -> None:
    shown = f"[{host}]" if ":" in host else host
    location = parse_location(f"{user}@{shown}:{path}" if user else f"{shown}:{path}")
    assert (location.user, location.host, location.path) == (user, host, path)


@given(host=HOSTS, port=st.integers(1, 65535), path=NAMES)
def test_url_form_round_trip(host: str, port: int, path: str) -> None:
    shown = f"[{host}]" if ":" in host else host
    quoted = "".join(f"%{byte:02x}" for byte in os.fsencode(path))
    location = parse_location(f"ssh://{shown}:{port}/{quoted}")
    assert (location.host, location.port, location.path) == (host, port, path)


@given(NAMES)
def test_a_slash_before_the_colon_means_local(name: str) -> None:
    assert not parse_location("./" + name).is_remote


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("1", 1),
        ("65536", 64 * KIB),
        ("256k", 256 * KIB),
        ("4M", 4 * MIB),
        ("1.5m", 3 * MIB // 2),
        ("4 MB", 4 * MIB),
        ("1GiB", GIB),
        ("2t", 2048 * GIB),
        ("9b", 9),
    ],
)
def test_sizes(text: str, size_bytes: int) -> None:
    assert parse_size(text, "-b") == size_bytes


@pytest.mark.parametrize(
    "text",
    ["", "0", "0M", "-1", "+1", "1.M", ".5M", "M", "4X", "4MM", "٤", "9" * 5000, "9999999999T"],
)
def test_sizes_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"^-b: "):
        parse_size(text, "-b")


@given(st.integers(1, 2**63 - 1))
def test_size_round_trip(size_bytes: int) -> None:
    assert parse_size(show_size(size_bytes), "") == size_bytes


@pytest.mark.parametrize(
    ("text", "cpus"), [("0", (0,)), ("0,2-5", (0, 2, 3, 4, 5)), ("7-7, 1", (7, 1)), ("3,3", (3, 3))]
)
def test_cpus(text: str, cpus: tuple[int, ...]) -> None:
    assert parse_cpus(text) == cpus


@pytest.mark.parametrize(
    "text", ["", "a", "1,", ",1", "2-", "-2", "5-2", "1--2", "99999", "\u0661"]
)
def test_no_cpus(text: str) -> None:
    with pytest.raises(UsageError, match=r"--cpus: .* is not a list of processors"):
        parse_cpus(text)


@pytest.mark.parametrize(
    "fields",
    [
        {"connections": 1},
        {"connections": 256},
        {"block_bytes": 4 * KIB},
        {"block_bytes": MIB, "chunk_bytes": MIB},
        {"chunk_bytes": 64 * MIB},
        {"chunk_bytes": 256 * KIB},  # less than a block, which is then shorter
        {"limit_kbit_s": 1},
        {"port": 65535},
        {"address_family": 6},
        {"cipher": "aes128-gcm@openssh.com,chacha20-poly1305@openssh.com"},
        {"jump": "me@a,b:2222"},
        {"identities": ("/tmp/k\udcff y",)},
        {"persist": "yes"},
        {"persist": "no"},
        {"persist": "0"},
        {"persist": "90"},
        {"persist": "1h30m15"},
        {"congestion": "bbr2", "rcvbuf_bytes": 4 * KIB, "sndbuf_bytes": GIB - 1},
        {"bind": ("192.0.2.1", "2001:db8::1", "fe80::1%eth0")},
        {"cpus": (0, 8191)},
    ],
)
def test_options_within_bounds(fields: dict[str, object]) -> None:
    assert replace(Options(), **fields) == Options(**fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"connections": 0}, "--connections must be 1 to 256, not 0"),
        ({"connections": "4"}, "whole number"),
        ({"connections": True}, "whole number"),
        ({"block_bytes": 4 * KIB - 1}, "--block-size must be 4 KiB to 1 MiB, not 4095"),
        ({"chunk_bytes": 128 * KIB}, "--chunk-size must be 256 KiB to 64 MiB, not 128 KiB"),
        ({"limit_kbit_s": 0}, "--limit must be 1 kbit/s to"),
        ({"port": 0}, "port"),
        ({"port": 65536}, "port"),
        ({"address_family": 5}, "address_family must be 4 or 6"),
        ({"progress": "loud"}, "auto, bar, plain, json, none"),
        ({"cipher": ""}, "cipher"),
        ({"cipher": "a b"}, "cipher"),
        ({"program": ""}, "program"),
        ({"program": "ssh\0"}, "program"),
        ({"config_file": ""}, "--config is empty"),
        ({"jump": "-oX"}, "jump"),
        ({"identities": ("",)}, "--identity is empty"),
        ({"ssh_options": ("A\nB",)}, "--ssh-option has a control character"),
        ({"filters": (("keep", "*"),)}, "exclude or include"),
        ({"persist": ""}, "--persist: '' is not a time"),
        ({"persist": "1" * 40 + "x"}, "--persist"),
        ({"congestion": ""}, "congestion control"),
        ({"congestion": "x" * 16}, "congestion control"),
        ({"rcvbuf_bytes": 4 * KIB - 1}, "--rcvbuf must be 4 KiB to 1073741823"),
        ({"connections": "auto"}, "--connections must be a whole number, not 'auto'"),
        ({"bind": ("host",)}, "--bind: 'host' is not an IP address"),
        ({"bind": ("192.0.2.1", "")}, "--bind: '' is not an IP address"),
        ({"bind": ("fe80::1%a;b",)}, "--bind"),
        ({"bind": ("fe80::1%a\n",)}, "control character"),
        ({"cpus": (8192,)}, "--cpus must be 0 to 8191"),
        ({"filters": (("exclude", ""),)}, "empty"),
        ({"filters": ("*.tmp",)}, "filters: '*.tmp' is no pair such as"),
        ({"filters": (("exclude", 1),)}, "is no pair"),
        ({"filters": (("exclude", "*" * 4095 + "\udc80" * 4095),) * 30}, "too many"),
        ({"min_size_bytes": 2, "max_size_bytes": 1}, "--min-size is more than --max-size"),
        ({"min_age_s": 2, "max_age_s": 1}, "--min-age is more than --max-age"),
        ({"link_dest": b"../1"}, "tuple"),
        ({"archive": True, "link_dest": ("",)}, "--link-dest"),
        ({"archive": True, "link_dest": ("a\0",)}, "control character"),
        ({"archive": True, "link_dest": ("\ud800",)}, "no file name"),
        ({"archive": True, "link_dest": ("x",) * 21}, "--link-dest: at most 20 folders"),
        ({"link_dest": ("x",)}, "--link-dest needs -r or -a"),
        ({"archive": True, "check": True, "link_dest": ("x",)}, "--check compares with DEST"),
    ],
)
def test_options_out_of_bounds(fields: dict[str, object], message: str) -> None:
    with as_typed(), pytest.raises(UsageError) as caught:
        Options(**fields)  # type: ignore[arg-type]
    assert message in caught.value.message
    assert "\n" not in caught.value.message


def test_a_copy_has_a_source() -> None:
    with pytest.raises(UsageError, match="missing"):
        check_direction([], parse_location("host:a"))


# --- a host alone


@pytest.mark.parametrize(
    ("text", "login", "port"),
    [
        ("host", "host", None),
        ("host:", "host", None),
        ("me@host", "me@host", None),
        ("[fe80::1]", "fe80::1", None),
        ("me@[fe80::1]:", "me@fe80::1", None),
        ("ssh://me@host:2222", "me@host", 2222),
        ("ssh://host/", "host", None),
    ],
)
def test_a_host_alone(text: str, login: str, port: int | None) -> None:
    host = parse_host(text)
    assert (host.login, host.port, host.path) == (login, port, "")


@pytest.mark.parametrize("text", ["", "host:x", "./host", "/", "a/b", "ssh://host/x", "-x", "a b"])
def test_no_host_alone(text: str) -> None:
    with pytest.raises(UsageError):
        parse_host(text)


def test_one_text_is_one_of_several() -> None:
    options = Options(
        identities=Path("key"), bind="192.0.2.1", ssh_options="Port=22", link_dest="../1",
        recursive=True, config_file=Path("a"),
    )  # fmt: skip
    assert (options.identities, options.bind) == (("key",), ("192.0.2.1",))
    assert options.config_file == "a"
    assert (options.ssh_options, options.link_dest) == (("Port=22",), ("../1",))
