"""The errno table: the repository's, read from the package, class by class."""

from __future__ import annotations

import copy
import errno
import pickle
import socket
from pathlib import Path
from typing import Any

import grpc
import pytest

import rdsd
import rdsd.aio
from rdsd import ERRNO_TABLE, RdsError, error_from_errno, from_grpc
from rdsd._errors import ErrnoRow
from rdsd._front_end import control_path, why_no_rings

REPO = Path(__file__).resolve().parents[3]


def test_the_package_has_the_repositorys_table() -> None:
    here = Path(rdsd.__file__).parent / "v1" / "errno.json"
    original = REPO / "api" / "rdsd" / "v1" / "errno.json"
    assert here.read_bytes() == original.read_bytes(), "run generate.sh"


@pytest.mark.parametrize("row", ERRNO_TABLE, ids=lambda row: str(row.symbol))
def test_each_errno_has_its_class(row: ErrnoRow) -> None:
    assert getattr(errno, row.symbol) == row.errno
    error = error_from_errno(row.errno)
    assert type(error) is row.error
    assert type(error) is not RdsError
    assert (error.errno, str(error)) == (row.errno, row.text)
    assert row.symbol in (row.error.__doc__ or "")
    assert row.error.__name__ in rdsd.__all__


def test_every_status_code_has_one_errno() -> None:
    codes = [code for row in ERRNO_TABLE for code in row.default_for]
    assert sorted(codes) == sorted(c.name for c in grpc.StatusCode if c is not grpc.StatusCode.OK)
    assert {row.grpc_code for row in ERRNO_TABLE} <= set(codes)


def test_the_builtin_classes_match() -> None:
    for number, builtin in (
        (errno.EAGAIN, BlockingIOError),
        (errno.ETIMEDOUT, TimeoutError),
        (errno.EACCES, PermissionError),
        (errno.ECONNREFUSED, ConnectionRefusedError),
        (errno.ECONNRESET, ConnectionResetError),
        (errno.ESHUTDOWN, BrokenPipeError),
        (errno.ENOENT, FileNotFoundError),
    ):
        assert isinstance(error_from_errno(number), builtin)


def test_errors_survive_copy_and_pickle() -> None:
    error = error_from_errno(errno.ESHUTDOWN, "gone")
    error.undecided = True
    batch = rdsd.BatchError([(1, error)], range(5, 8))
    for same in (copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert (type(same), same.errno, same.undecided) == (type(error), error.errno, True)
        assert str(same) == str(error) == "gone (it may have been accepted)"
    for other in (copy.copy(batch), pickle.loads(pickle.dumps(batch))):
        assert (other.accepted, other.undecided, other.tags) == (2, True, range(5, 8))
        assert str(other) == str(batch)
    assert str(batch).count("may have been accepted") == 1


async def test_clients_are_not_sent_to_other_processes() -> None:
    """As multiprocessing would: "cannot pickle '_thread.RLock' object" helps nobody."""
    near, far = rdsd.Client("unix:///nowhere"), rdsd.aio.Client("unix:///nowhere")
    for what in (near, near.admin, near.volumes, far, far.admin, far.volumes):
        for use in (pickle.dumps, copy.copy):
            with pytest.raises(TypeError, match="give that the target"):
                use(what)
    near.close()
    await far.close()


def test_an_errno_outside_the_table() -> None:
    error = error_from_errno(errno.EXDEV, "across devices")
    assert type(error) is RdsError
    assert error.errno == errno.EXDEV


class StatusError(grpc.RpcError):  # type: ignore[misc,unused-ignore]
    """What a failed call raises, with a status of our making."""

    def __init__(self, code: grpc.StatusCode, text: str, detail: bytes = b"") -> None:
        self._code = code
        self._text = text
        self._detail = detail

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return self._text

    def trailing_metadata(self) -> Any:
        return (("grpc-status-details-bin", self._detail),) if self._detail else ()


# What api/rdsd/v1/errno.go makes of ErrCongested with the text "full"; errno_test.go has it too.
GO_STATUS = bytes.fromhex(
    "0808120466756c6c1a490a28747970652e676f6f676c65617069732e636f6d2f676f6f676c652e7270632e"
    "4572726f72496e666f121d0a07454e4f425546531204726473641a0c0a056572726e6f1203313035"
)


def test_the_exact_errno_comes_from_the_detail() -> None:
    error = from_grpc(StatusError(grpc.StatusCode.RESOURCE_EXHAUSTED, "full", GO_STATUS))
    assert isinstance(error, rdsd.Congested)
    assert (error.errno, str(error)) == (errno.ENOBUFS, "full")


def test_a_detail_of_another_domain_says_nothing() -> None:
    other = GO_STATUS.replace(b"\x04rdsd", b"\x04abcd")
    error = from_grpc(StatusError(grpc.StatusCode.RESOURCE_EXHAUSTED, "full", other))
    assert isinstance(error, rdsd.OutOfBudget)


def test_a_bare_status_falls_back_to_its_code() -> None:
    error = from_grpc(StatusError(grpc.StatusCode.RESOURCE_EXHAUSTED, "too much"))
    assert isinstance(error, rdsd.OutOfBudget)
    assert str(error) == "too much"


def test_no_daemon_names_the_target() -> None:
    error = from_grpc(StatusError(grpc.StatusCode.UNAVAILABLE, "refused"), "unix:///x")
    assert isinstance(error, rdsd.DaemonUnavailable)
    assert "unix:///x" in str(error)


def test_a_malformed_detail_hides_nothing() -> None:
    error = from_grpc(StatusError(grpc.StatusCode.NOT_FOUND, "no peer", b"\xff\xff\xff"))
    assert isinstance(error, rdsd.NotFound)


@pytest.mark.parametrize("way", ["auto", "rings", "seqpacket", "grpc"])
def test_where_no_daemon_is_the_text_says_what_would_be_right(tmp_path: Path, way: Any) -> None:
    if way == "rings" and why_no_rings():
        pytest.skip(why_no_rings())
    missing = tmp_path / "missing.sock"
    left = tmp_path / "left.sock"
    for name, kind in (
        (left, socket.SOCK_STREAM),
        (control_path(f"unix:{left}"), socket.SOCK_SEQPACKET),
    ):
        with socket.socket(socket.AF_UNIX, kind) as ended:
            ended.bind(str(name))
    for path, right in ((missing, r"no such socket; start the daemon"), (left, "has ended")):
        with (
            rdsd.Client(str(path), front_end=way) as client,
            pytest.raises(
                rdsd.DaemonUnavailable, match=rf"{path.name}(\.rings)?: .*{right}"
            ) as met,
        ):
            client.bind(("127.0.0.1", 0))
        assert type(met.value) is rdsd.DaemonUnavailable


def test_an_error_of_somebody_else_has_a_text() -> None:
    """A fake in a test of the application raises the class, or gives it words alone: their str()
    raised TypeError."""
    assert str(rdsd.Closed()) == ""
    late = rdsd.TimedOut("late")
    assert str(late) == "late"
    late.undecided = True
    assert str(late) == "late (it may have been accepted)"
