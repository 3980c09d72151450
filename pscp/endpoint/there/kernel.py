"""The kernel's settings for TCP, which --measure looks at.

Sent with Learn. Not here: what is advised about them (../../measuring/advice.py).
"""

import os
from typing import Dict, NamedTuple

from ..asking import answers

_SETTINGS = {
    "Linux": "net.ipv4.tcp_rmem net.ipv4.tcp_wmem net.core.rmem_max net.core.wmem_max"
    " net.ipv4.tcp_congestion_control",
    "FreeBSD": "kern.ipc.maxsockbuf net.inet.tcp.sendbuf_max net.inet.tcp.recvbuf_max"
    " net.inet.tcp.sendspace net.inet.tcp.recvspace net.inet.tcp.cc.algorithm",
}


class Kernel(NamedTuple):
    """The kernel's settings for TCP. Answer: `{name: value}`."""


def kernel_settings() -> Dict[str, str]:
    """Return this kernel's settings for TCP, as far as it has and shows them."""
    texts = {name: _setting(name) for name in _SETTINGS.get(os.uname()[0], "").split()}
    return {name: " ".join(text.split()) for name, text in texts.items() if text.strip()}


def _setting(name: str) -> str:
    import subprocess

    try:
        if os.uname()[0] == "Linux":
            with open("/proc/sys/" + name.replace(".", "/")) as file:
                return file.read()
        argv = ["/sbin/sysctl", "-n", name]
        return subprocess.check_output(argv, stderr=subprocess.DEVNULL).decode("ascii", "replace")
    except (OSError, subprocess.SubprocessError):
        return ""


answers.add(answers.ITSELF, {Kernel: lambda of, request: kernel_settings()})
