"""The volumes of a daemon, for threads."""

from __future__ import annotations

from collections.abc import Iterable

import grpc

from . import _volumes_calls as calls
from ._surface import ForkGuard
from ._sync_service import Service, Watch
from ._target import Timeout
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
    """What a daemon exports, what it maps from other nodes, and the sessions between them.

    From ``Client.volumes``. Changing something needs an administrator: root, the daemon's
    own user or one of api.admin_uids. Every timeout is in seconds, a timedelta, or None to
    wait for the daemon, which has limits of its own; past it TimedOut is raised, and what was
    begun may still be done.
    """

    def __init__(self, channel: grpc.Channel, target: str, guard: ForkGuard) -> None:
        super().__init__(rpc.VolumeServiceStub(channel), target, guard)

    def export(
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
        """Offers a file, a block device or memory of the daemon's node to other nodes.

        name: what they call it. path: of the file or block device, absolute; none for
        memory. size: bytes, of memory or of a file that create makes. shared: several
        sessions may write at a time. logical_block: 512 or 4096. allow_addresses,
        allow_sessions: who may open it ("10.0.0.0/24"; "web-*"), by default all that may
        connect. persist: again when the daemon starts. Raises Exists if the name is taken.
        """
        return self._do(
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

    def unexport(
        self,
        name: str,
        *,
        force: bool = False,
        timeout: Timeout = None,
    ) -> None:
        """Ends an export: Busy while sessions have it open, unless force; then their requests
        fail."""
        self._do(calls.unexport(name, force=force), timeout)

    def force_close(
        self,
        export: str,
        session: str,
        *,
        timeout: Timeout = None,
    ) -> None:
        """Takes an export from one session of another node that has it open, named by name or id;
        the others keep it. The session's requests fail until it opens it anew."""
        self._do(calls.force_close(export, session), timeout)

    def map(
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
        """Makes a volume of another node a block device of the daemon's; ``device`` of what it
        returns is what programs open.

        node: address or host name, perhaps with a port. attach: "socket" (an NBD export on
        a Unix socket, at socket_path) or "nbd" (a kernel device). access: "rw" by default,
        "ro", "migration". paths: ("SRC", "DST") or "SRC,DST" or "DST" each; one, to node,
        by default. session: mappings of one session share its paths. io_timeout: a request
        that takes longer is told of, and gives a path up that may not live. on_loss:
        without a path requests "wait", or end in "error" after loss_timeout. unfenced: what was
        in flight on a lost path to a kernel's server goes to another one "after" unfenced_after
        or "now", or has to "wait" for the same path. max_reconnect_attempts: in a row, of a
        lost path; -1 is without end. persist: again
        when the daemon starts. Raises NotFound, Exists, Busy, Owned, PermissionDenied,
        Unreachable and others.
        """
        return self._do(
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

    def unmap(
        self,
        mapping: str,
        *,
        force: bool = False,
        timeout: Timeout = None,
    ) -> None:
        """Ends a mapping, named by its id, its device or "NODE:NAME": Busy while a program has
        it open, unless force; then what is under way fails, and it takes seconds at most."""
        self._do(calls.unmap(mapping, force=force), timeout)

    def remap(
        self,
        mapping: str,
        *,
        timeout: Timeout = None,
    ) -> Mapping:
        """Opens a closed mapping again, now."""
        return self._do(calls.remap(mapping), timeout)

    def list(
        self,
        *,
        timeout: Timeout = None,
    ) -> VolumeList:
        """All exports and mappings."""
        return self._do(calls.volume_list(), timeout)

    def get_mapping(
        self,
        mapping: str,
        *,
        timeout: Timeout = None,
    ) -> Mapping:
        """One mapping, named as for unmap."""
        return self._do(calls.get_mapping(mapping), timeout)

    def get_export(
        self,
        name: str,
        *,
        timeout: Timeout = None,
    ) -> Export:
        """One export."""
        return self._do(calls.get_export(name), timeout)

    def info(
        self,
        node: str,
        name: str,
        *,
        session: str = "",
        paths: Iterable[PathLike] = (),
        timeout: Timeout = None,
    ) -> RemoteVolume:
        """Asks another node about a volume, without mapping it."""
        return self._do(calls.info(node, name, session=session, paths=paths), timeout)

    def resize_export(
        self,
        name: str,
        size: int = 0,
        *,
        timeout: Timeout = None,
    ) -> int:
        """Gives the store of an export (a file, memory) a new size in bytes and tells who has
        it open; 0 looks which size the store has. Returns the size afterwards."""
        return self._do(calls.resize_export(name, size), timeout)

    def resize_mapping(
        self,
        mapping: str,
        size: int = 0,
        *,
        timeout: Timeout = None,
    ) -> int:
        """Takes over the size the other node says the volume has now, which has to be size
        unless that is 0. Returns the size afterwards."""
        return self._do(calls.resize_mapping(mapping, size), timeout)

    def sessions(
        self,
        *,
        timeout: Timeout = None,
    ) -> tuple[VolumeSession, ...]:
        """The sessions of the daemon in both roles."""
        return self._do(calls.sessions(), timeout)

    def paths(
        self,
        session: str = "",
        *,
        timeout: Timeout = None,
    ) -> tuple[VolumePath, ...]:
        """The paths of a session, named by name or id; by default of all."""
        return self._do(calls.paths(session), timeout)

    def add_path(
        self,
        session: str,
        path: PathLike,
        *,
        wait: bool = False,
        timeout: Timeout = None,
    ) -> VolumePath:
        """Adds a path to a client's session; wait: until it is connected. A path that fails to
        connect ends the waiting with the reason, and goes on by itself."""
        return self._do(calls.add_path(session, path, wait), timeout)

    def remove_path(
        self,
        session: str,
        path: PathLike,
        *,
        wait: bool = False,
        timeout: Timeout = None,
    ) -> None:
        """Takes a path from a client's session; requests on it move to others. wait: until its
        links are closed."""
        self._do(calls.on_path("RemovePath", session, path, wait), timeout)

    def disconnect_path(
        self,
        session: str,
        path: PathLike,
        *,
        wait: bool = False,
        timeout: Timeout = None,
    ) -> None:
        """Closes a path. A client's stays so until reconnect_path; one of a server comes back
        if the client wants it to. wait: until its links are closed."""
        self._do(calls.on_path("DisconnectPath", session, path, wait), timeout)

    def reconnect_path(
        self,
        session: str,
        path: PathLike,
        *,
        wait: bool = False,
        timeout: Timeout = None,
    ) -> None:
        """Connects a client's path anew, now; wait: as for add_path."""
        self._do(calls.on_path("ReconnectPath", session, path, wait), timeout)

    def set_policy(
        self,
        session: str,
        policy: str,
        *,
        timeout: Timeout = None,
    ) -> None:
        """Changes how a client's session chooses among its paths."""
        self._do(calls.set_policy(session, policy), timeout)

    def set_session(
        self,
        session: str,
        *,
        policy: str = "",
        unfenced: str = "",
        unfenced_after: Timeout = None,
        max_reconnect_attempts: int = 0,
        timeout: Timeout = None,
    ) -> VolumeSession:
        """Changes settings of a client's session while it is in use, and those of its mappings;
        what is left out stays. max_reconnect_attempts: -1 is without end."""
        return self._do(
            calls.set_session(
                session,
                policy=policy,
                unfenced=unfenced,
                unfenced_after=unfenced_after,
                max_reconnect_attempts=max_reconnect_attempts,
            ),
            timeout,
        )

    def reset_stats(
        self,
        session: str = "",
        path: PathLike | None = None,
        *,
        timeout: Timeout = None,
    ) -> None:
        """Sets the statistics of a path to 0; without path of all paths of the session, and
        without session of all sessions."""
        self._do(calls.reset_stats(session, path), timeout)

    def check(
        self,
        what: str = "",
        *,
        timeout: Timeout = None,
    ) -> tuple[VolumeFinding, ...]:
        """Looks for what is wrong with a mapping (named as for unmap), an export or a session;
        by default with everything."""
        return self._do(calls.check(what), timeout)

    def watch(
        self, after: int | None = None, *, instance: int = 0, timeout: Timeout = None
    ) -> VolumeWatch:
        """Events from now on; with after, those behind that number that the daemon still
        has (0: all of them). instance is that of the event of that number: if the daemon was
        started since, a gap comes first. timeout is for the daemon to begin."""
        self._guard.check()
        return VolumeWatch(self._stub, self._target, calls.watch(after, instance), timeout)


class VolumeWatch(Watch[VolumeEvent]):
    """An iterator of VolumeEvent, from Volumes.watch; close it when done.

    It ends with DaemonUnavailable when the daemon does, and stops when closed.
    """
