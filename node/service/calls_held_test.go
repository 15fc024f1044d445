package service

import (
	"bytes"
	"fmt"
	"runtime"
	"testing"

	"google.golang.org/grpc/metadata"

	"github.com/rdsd/rdsd/node/client"
)

// heapOf is what one of what f makes takes of the heap.
func heapOf(f func() any) int64 {
	const n = 2048 // against what others give back meanwhile
	kept := make([]any, n)
	heap := func() int64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.GC() // what the first one found finalizers for
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := heap()
	for i := range kept {
		kept[i] = f()
	}
	after := heap()
	runtime.KeepAlive(kept)
	return (after - before) / n
}

// mostFields is how many fields maxHeaderBytes lets through, with one byte of text each.
const mostFields = maxHeaderBytes / 33

// TestHeadersAreCharged: a field of a call's headers is a byte on the wire if it was there before, and becomes
// a hundred. Its stream is charged for that, in whatever frames they come, until it ends.
func TestHeadersAreCharged(t *testing.T) {
	names := make([]string, mostFields)
	for i := range names {
		names[i] = fmt.Sprint("n", i)
	}
	for _, n := range []int{15, 29, 57, 113, mostFields} {
		real := heapOf(func() any {
			md := make(metadata.MD, n) // as gRPC does
			for _, name := range names[:n] {
				md[name] = append(md[name], "")
			}
			return md
		})
		block := bytes.Repeat([]byte{0x80 | 62}, n)
		for _, cut := range []int{n, n / 2} {
			k := newLedgerConn()
			b := append(make([]byte, prefaceSize), h2frame(frameHeaders, 1, block[:cut])...)
			if cut < n {
				b = append(b, h2frame(frameContinuation, 1, block[cut:])...)
			}
			if err := k.sends(b, 7); err != nil {
				t.Fatal(err)
			}
			if got := k.account.Used() - streamBytes + heldFree; got < real || got > heldFree+2*real {
				t.Errorf("%d fields take %d bytes, and %d are charged for them", n, real, got)
			}
			if _, err := k.Write(flagged(frameHeaders, flagEndStream, 1, []byte("x"))); err != nil || k.account.Used() != 0 {
				t.Errorf("when its call is over %d bytes are charged for %d fields, %v", k.account.Used(), n, err)
			}
			k.Close()
		}
	}
}

// TestRequestsAreCharged: the first message of a call is charged until the call ends, for what it may become,
// though its bytes were read and window was given for them. The others are not, and one that is not read is not.
func TestRequestsAreCharged(t *testing.T) {
	frame := func(b []byte) (f []byte) {
		for len(b) > 0 {
			n := min(len(b), 16<<10)
			f = append(f, h2frame(frameData, 1, b[:n])...)
			b = b[n:]
		}
		return f
	}
	for _, size := range []int{0, 1, heldFree / 64, heldFree/64 + 1, 1000, 60_000, 64 << 10, 64<<10 + 1} {
		whole := grpcMessage(size, size+5)
		want := streamBytes + max(client.RequestBytes(int64(len(whole)))-heldFree, 0)
		if size > 64<<10 {
			want = streamBytes
		}
		for _, piece := range []int{11, 64 << 10} {
			k := newLedgerConn()
			if err := k.sends(append(append(make([]byte, prefaceSize), h2frame(frameHeaders, 1, nil)...), frame(whole)...), piece); err != nil {
				t.Fatal(err)
			}
			if _, err := k.Write(h2frame(frameWindowUpdate, 1, number(uint32(len(whole))))); err != nil || k.opened != want {
				t.Errorf("of a message of %d bytes that was read %d are charged, want %d; %v", size, k.opened, want, err)
			}
			// Of a message that is announced, window is given for all before it comes.
			if err := k.sends(frame(grpcMessage(4<<20, 5)), piece); err != nil {
				t.Fatal(err)
			}
			if _, err := k.Write(h2frame(frameWindowUpdate, 1, number(4<<20))); err != nil || k.opened != want {
				t.Errorf("with another behind it %d are charged for one of %d, want %d; %v", k.opened, size, want, err)
			}
			if err := k.sends(h2frame(frameReset, 1, number(8)), piece); err != nil {
				t.Fatal(err)
			}
			if _, err := k.Write(h2frame(frameWindowUpdate, 0, number(1))); err != nil || k.opened != 0 || k.held != 0 {
				t.Errorf("%d bytes are charged for a call that is over, %v", k.opened, err)
			}
			k.Close()
			if k.memory.Used() != 0 {
				t.Errorf("%d bytes are charged when the connection is closed", k.memory.Used())
			}
		}
	}
}
