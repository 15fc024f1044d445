"""Reads vectors.json and rdsd.txt without any code of rdsd: the layouts as they
stand in docs/protocol.md, so that both readings agree or a test fails.
Prints the number of vectors checked."""

import json
import pathlib
import struct

HEADER = struct.Struct(">QQIHHBB4xH16s")
HERE = pathlib.Path(__file__).parent
FLAG_CONTROL = 0x80


def checksum_ok(raw: bytes) -> bool:
    total = sum(struct.unpack(">24H", raw))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return raw[30:32] == b"\0\0" or total == 0xFFFF


def walk(ext: bytes) -> dict[str, int]:
    """The fields of a handshake's extension space."""
    sizes = {1: 4, 2: 4, 3: 8, 4: 8, 5: 2, 6: 4, 7: 4, 8: 1, 9: 5}
    found: dict[str, int] = {}
    at = 0
    while at < 16:
        kind, at = ext[at], at + 1
        if kind == 0xD5 and at + 12 <= 16:
            version, lanes, log2, caps, incarnation = struct.unpack_from(">BBBBQ", ext, at)
            if version and 1 <= lanes <= 8 and log2 <= 20 and incarnation:
                found |= {"hello.version": version, "hello.lanes": lanes, "hello.creditlog2": log2}
                found |= {"hello.incarnation": incarnation} | ({"hello.caps": caps} if caps else {})
        if kind == 0 or kind >= 16 or at + sizes.get(kind, 0) > 16:
            return found
        value = int.from_bytes(ext[at : at + sizes.get(kind, 0)], "big")
        if kind in (5, 6) and value:
            found[{5: "npaths", 6: "gennum"}[kind]] = value
        if kind == 8:
            found["sportidx"] = 1
        at += sizes.get(kind, 0)
    return found


def port_states(b: bytes) -> list[str] | None:
    if len(b) % 4:
        return None
    entries = list(struct.iter_unpack(">HH", b))
    if any(state > 1 for _, state in entries):
        return None
    return [f"{port} {'congested' if state else 'clear'}" for port, state in entries]


def refusals(b: bytes) -> list[str] | None:
    if not b or len(b) % 12:
        return None
    entries = list(struct.iter_unpack(">QB3s", b))
    if any(reason not in (1, 2) or pad != b"\0\0\0" for _, reason, pad in entries):
        return None
    return [f"{seq} {reason}" for seq, reason, _ in entries]


def train(ext: bytes, length: int) -> dict[str, int] | None:
    if ext[0] != 0xD6:
        return {}
    count, form = struct.unpack_from(">HB", ext, 1)
    if not 1 <= count <= 4096 or form > 1 or length > 65536:
        return None
    if form and length < 4 * count or not form and length % count:
        return None
    return {"count": count} | ({"table": 1} if form else {}) | ({"joined": 1} if ext[4] & 1 else {})


def table(b: bytes, count: int) -> list[str]:
    rest, found = b[4 * count :], []
    for (length,) in struct.iter_unpack(">I", b[: 4 * count]):
        found.append(rest[:length].hex())
        rest = rest[length:]
    return found


def check(kind: str, b: bytes, fields: dict[str, str], entries: list[str]) -> None:
    invalid = "invalid" in fields
    numbers = {k: int(v, 0) for k, v in fields.items() if k not in ("kind", "checksum", "invalid")}
    if kind == "header":
        seq, ack, length, sport, dport, flags, credit, csum, _ = HEADER.unpack(b)
        got = dict(seq=seq, ack=ack, len=length, sport=sport, dport=dport, flags=flags, credit=credit)
        assert got == dict.fromkeys(got, 0) | numbers, (got, numbers)
        assert ("checksum" in fields) == (csum != 0) and checksum_ok(b)
        assert (fields["kind"] == "control") == bool(flags & FLAG_CONTROL)
    elif kind == "handshake":
        assert walk(b) == numbers, (walk(b), numbers)
    elif kind == "train":
        length = numbers.pop("len")
        assert train(b, length) == (None if invalid else numbers), (train(b, length), numbers)
    elif kind == "table":
        assert table(b, numbers["count"]) == entries, (table(b, numbers["count"]), entries)
    else:
        got_entries = port_states(b) if kind == "portstates" else refusals(b)
        assert got_entries == (None if invalid else entries), (got_entries, entries)


def main() -> None:
    count = 0
    for text in (HERE / "rdsd.txt").read_text().split("\n\n"):
        lines = [line.split(" ") for line in text.splitlines() if line and not line.startswith("#")]
        if not lines:
            continue
        (_, kind, name), (_, *digits), *rest = lines
        repeated = ("port", "refusal", "datagram")
        fields = {w[0]: " ".join(w[1:]) for w in rest if w[0] not in repeated}
        entries = [" ".join(w[1:]) for w in rest if w[0] in repeated]
        try:
            check(kind, bytes.fromhex("".join(digits)), fields, entries)
        except Exception as e:
            raise SystemExit(f"rdsd.txt: {kind} {name}: {e!r}") from e
        count += 1
    for frame in json.loads((HERE / "vectors.json").read_text())["frames"]:
        raw, want = bytes.fromhex(frame["header"]), frame["decode"]
        names = ("sequence", "ack", "len", "sport", "dport", "flags", "credit", "csum")
        assert dict(zip(names, HEADER.unpack(raw))) == {n: want[n] for n in names}, frame["name"]
        assert checksum_ok(raw), frame["name"]
        count += 1
    print(count)


if __name__ == "__main__":
    main()
