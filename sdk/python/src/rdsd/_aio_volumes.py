"""The volumes of a daemon, for asyncio: the surface of _sync_volumes."""

from __future__ import annotations

from collections.abc import Iterable

import grpc.aio

from . import _volumes_calls as calls
from ._aio_service import Service, Watch
from ._surface import ForkGuard
from ._target import Timeout, seconds
from ._volumes_types import (
    Export,
    Mapping,
    PathLike,
    RemoteVolume,
    VolumeEvent,
    VolumeFinding,
    VolumeList,
    VolumePath,
    VolumeSession,
)
from .v1 import volume_pb2_grpc as rpc


class Volumes(Service):
    """As rdsd.Volumes, inside one event loop. A cancelled ``await`` leaves open whether what
    was begun is done."""

    def __init__(self, channel: grpc.aio.Channel, target: str, guard: ForkGuard) -> None:
        super().__init__(rpc.VolumeServiceStub(channel), target, guard)

    async def export(
        self,
        name: str,
        *,
        path: str = "",
        kind: str = "",
        size: int = 0,
        create: bool = False,
        read_only: bool = False,
        shared: bool = False,
        logical_block: int = 0,
        allow_addresses: Iterable[str] = (),
        allow_sessions: Iterable[str] = (),
        persist: bool = False,
        timeout: Timeout = None,
    ) -> Export:
        """As rdsd.Volumes.export."""
        return await self._do(
            calls.export(
                name,
                path=path,
                kind=kind,
                size=size,
                create=create,
                read_only=read_only,
                shared=shared,
                logical_block=logical_block,
                allow_addresses=allow_addresses,
                allow_sessions=allow_sessions,
                persist=persist,
            ),
            timeout,
        )

    async def unexport(
        self,
        name: str,
        *,
        force: bool = False,
        timeout: Timeout = None,
    ) -> None:
        """Ends an export: Busy while sessions have it open, unless force; then their requests
        fail."""
        await self._do(calls.unexport(name, force=force), timeout)

    async def force_close(
        self,
        export: str,
        session: str,
        *,
        timeout: Timeout = None,
    ) -> None:
        """Takes an export from one session of another node that has it open, named by name or id;
        the others keep it. The session's requests fail until it opens it anew."""
        await self._do(calls.force_close(export, session), timeout)

    async def map(
        self,
        node: str,
        name: str,
        *,
        attach: str = "",
        access: str = "",
        paths: Iterable[PathLike] = (),
        policy: str = "",
        session: str = "",
        queue_depth: int = 0,
        io_timeout: Timeout = None,
        loss_timeout: Timeout = None,
        on_loss: str = "",
        unfenced: str = "",
        unfenced_after: Timeout = None,
        max_reconnect_attempts: int = 0,
        persist: bool = False,
        socket_path: str = "",
        device: str = "",
        id: str = "",
        timeout: Timeout = None,
    ) -> Mapping:
        """As rdsd.Volumes.map."""
        return await self._do(
            calls.map_volume(
                node,
                name,
                attach=attach,
                access=access,
                paths=paths,
                policy=policy,
                session=session,
                queue_depth=queue_depth,
                io_timeout=io_timeout,
                loss_timeout=loss_timeout,
                on_loss=on_loss,
                unfenced=unfenced,
                unfenced_after=unfenced_after,
                max_reconnect_attempts=max_reconnect_attempts,
                persist=persist,
                socket_path=socket_path,
                device=device,
                id=id,
            ),
            timeout,
        )

    async def unmap(
        self,
        mapping: str,
        *,
        force: bool = False,
        timeout: Timeout = None,
    ) -> None:
        """Ends a mapping, named by its id, its device or "NODE:NAME": Busy while a program has
        it open, unless force; then what is under way fails, and it takes seconds at most."""
        await self._do(calls.unmap(mapping, force=force), timeout)

    async def remap(
        self,
        mapping: str,
        *,
        timeout: Timeout = None,
    ) -> Mapping:
        """Opens a closed mapping again, now."""
        return await self._do(calls.remap(mapping), timeout)

    async def list(
        self,
        *,
        timeout: Timeout = None,
    ) -> VolumeList:
        """All exports and mappings."""
        return await self._do(calls.volume_list(), timeout)

    async def get_mapping(
        self,
        mapping: str,
        *,
        timeout: Timeout = None,
    ) -> Mapping:
        """One mapping, named as for unmap."""
        return await self._do(calls.get_mapping(mapping), timeout)

    async def get_export(
        self,
        name: str,
        *,
        timeout: Timeout = None,
    ) -> Export:
        """One export."""
        return await self._do(calls.get_export(name), timeout)

    async def info(
        self,
        node: str,
        name: str,
        *,
        session: str = "",
        paths: Iterable[PathLike] = (),
        timeout: Timeout = None,
    ) -> RemoteVolume:
        """Asks another node about a volume, without mapping it."""
        return await self._do(calls.info(node, name, session=session, paths=paths), timeout)

    async def resize_export(
        self,
        name: str,
        size: int = 0,
        *,
        timeout: Timeout = None,
    ) -> int:
        """Gives the store of an export (a file, memory) a new size in bytes and tells who has
        it open; 0 looks which size the store has. Returns the size afterwards."""
        return await self._do(calls.resize_export(name, size), timeout)

    async def resize_mapping(
        self,
        mapping: str,
        size: int = 0,
        *,
        timeout: Timeout = None,
    ) -> int:
        """Takes over the size the other node says the volume has now, which has to be size
        unless that is 0. Returns the size afterwards."""
        return await self._do(calls.resize_mapping(mapping, size), timeout)

    async def sessions(
        self,
        *,
        timeout: Timeout = None,
    ) -> tuple[VolumeSession, ...]:
        """The sessions of the daemon in both roles."""
        return await self._do(calls.sessions(), timeout)

    async def paths(
        self,
        session: str = "",
        *,
        timeout: Timeout = None,
    ) -> tuple[VolumePath, ...]:
        """The paths of a session, named by name or id; by default of all."""
        return await self._do(calls.paths(session), timeout)

    async def add_path(
        self,
        session: str,
        path: PathLike,
        *,
        wait: bool = False,
        timeout: Timeout = None,
    ) -> VolumePath:
        """Adds a path to a client's session."""
        return await self._do(calls.add_path(session, path, wait), timeout)

    async def remove_path(
        self,
        session: str,
        path: PathLike,
        *,
        wait: bool = False,
        timeout: Timeout = None,
    ) -> None:
        """Takes a path from a client's session; requests on it move to others."""
        await self._do(calls.on_path("RemovePath", session, path, wait), timeout)

    async def disconnect_path(
        self,
        session: str,
        path: PathLike,
        *,
        wait: bool = False,
        timeout: Timeout = None,
    ) -> None:
        """Closes a path. A client's stays so until reconnect_path; one of a server comes back
        if the client wants it to."""
        await self._do(calls.on_path("DisconnectPath", session, path, wait), timeout)

    async def reconnect_path(
        self,
        session: str,
        path: PathLike,
        *,
        wait: bool = False,
        timeout: Timeout = None,
    ) -> None:
        """Connects a client's path anew, now."""
        await self._do(calls.on_path("ReconnectPath", session, path, wait), timeout)

    async def set_policy(
        self,
        session: str,
        policy: str,
        *,
        timeout: Timeout = None,
    ) -> None:
        """Changes how a client's session chooses among its paths."""
        await self._do(calls.set_policy(session, policy), timeout)

    async def set_session(
        self,
        session: str,
        *,
        policy: str = "",
        unfenced: str = "",
        unfenced_after: Timeout = None,
        max_reconnect_attempts: int = 0,
        timeout: Timeout = None,
    ) -> VolumeSession:
        """As rdsd.Volumes.set_session."""
        return await self._do(
            calls.set_session(
                session,
                policy=policy,
                unfenced=unfenced,
                unfenced_after=unfenced_after,
                max_reconnect_attempts=max_reconnect_attempts,
            ),
            timeout,
        )

    async def reset_stats(
        self,
        session: str = "",
        path: PathLike | None = None,
        *,
        timeout: Timeout = None,
    ) -> None:
        """Sets the statistics of a path to 0; without path of all paths of the session, and
        without session of all sessions."""
        await self._do(calls.reset_stats(session, path), timeout)

    async def check(
        self,
        what: str = "",
        *,
        timeout: Timeout = None,
    ) -> tuple[VolumeFinding, ...]:
        """Looks for what is wrong with a mapping (named as for unmap), an export or a session;
        by default with everything."""
        return await self._do(calls.check(what), timeout)

    async def watch(
        self, after: int | None = None, *, instance: int = 0, timeout: Timeout = None
    ) -> VolumeWatch:
        """Events from now on; with after, those behind that number that the daemon still
        has (0: all of them). instance is that of the event of that number: if the daemon was
        started since, a gap comes first. timeout is for the daemon to begin."""
        self._guard.check()
        watch = VolumeWatch(self._stub, self._target, calls.watch(after, instance))
        await watch._begin(seconds(timeout))
        return watch


class VolumeWatch(Watch[VolumeEvent]):
    """An async iterator of VolumeEvent, from Volumes.watch; close it when done.

    It ends with DaemonUnavailable when the daemon does, and stops when closed.
    """
