"""scp, as `scp -O` and older clients speak it: asyncssh's, whose uploads land only when complete.

Not here: the files of a session (files.py).
"""

from __future__ import annotations

import asyncssh

from pscp.serve.files import Files
from pscp.serve.landing import Upload
from pscp.transports.libraries.asyncssh_server_internals import (
    ScpArguments,
    ScpSink,
    ScpSource,
    ServerFiles,
    SSHReader,
    SSHWriter,
    scp_error,
)

_BLOCK_BYTES = 256 * 1024


async def serve_scp(
    files: Files, command: str, reader: SSHReader[bytes], writer: SSHWriter[bytes]
) -> None:
    """Run one command of scp."""
    try:
        asked = ScpArguments().parse(command)
    except ValueError as error:
        writer.write(b"\x02scp: " + str(error).encode() + b"\n")
        writer.channel.exit(1)  # type: ignore[attr-defined]  # a server's channel
        await files.exit()
        return
    fs, path = ServerFiles(files), asked.path.encode("utf-8", "surrogateescape")
    try:
        if asked.source:
            source = ScpSource(fs, reader, writer, asked.preserve, asked.recurse, server=True)
            await source.run(path)
        else:
            preserve, recurse = asked.preserve, asked.recurse
            sink = _Sink(fs, reader, writer, asked.must_be_dir, preserve, recurse, server=True)
            sink.files = files
            await sink.run(path)
    finally:
        files.lose()
        await files.exit()


class _Sink(ScpSink):
    """Receives files; one that does not come whole does not land."""

    files: Files

    async def _recv_file(self, srcpath: bytes, dstpath: bytes, size: int) -> None:
        upload = self.files.open(dstpath, _WRITES, asyncssh.SFTPAttrs())
        assert isinstance(upload, Upload)
        self.send_ok()
        failed = await self._recv_content(upload, size)
        remote = await self.await_response()
        if failed is None and remote is None:
            try:
                await self.files.close(upload)
            except OSError as error:
                failed = error
        else:
            await self.files.drop(upload)
        if failed is not None:
            self.send_error(failed)
            failed.suppress_send = True  # type: ignore[attr-defined]  # as asyncssh marks it
        else:
            self.send_ok()
        if remote is not None or failed is not None:
            raise remote or failed or AssertionError

    async def _recv_content(self, upload: Upload, size: int) -> OSError | None:
        """Take the bytes of a file. Return the error of what could not be written."""
        offset, failed = 0, None
        while offset < size:
            data = await self.recv_data(min(size - offset, _BLOCK_BYTES))
            if not data:
                raise scp_error(
                    asyncssh.SFTPConnectionLost, "Connection lost", fatal=True, suppress_send=True
                )
            if failed is None:
                try:
                    await self.files.write(upload, offset, data)
                except OSError as error:
                    failed = error
            offset += len(data)
            self.files.load.settle()
        return failed


_WRITES = asyncssh.constants.FXF_WRITE | asyncssh.constants.FXF_CREAT | asyncssh.constants.FXF_TRUNC
