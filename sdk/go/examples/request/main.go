// Request asks a peer that may not be there, gives up after a while and takes
// back what is still queued.
//
//	request 127.0.0.2:0 127.0.0.99:7
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/netip"
	"os"
	"time"

	"github.com/rdsd/rdsd/rdserr"
	rdsd "github.com/rdsd/rdsd/sdk/go"
)

func main() {
	client, err := rdsd.Dial("")
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	ctx := context.Background()
	s, err := client.Bind(ctx, netip.MustParseAddrPort(os.Args[1]))
	if err != nil {
		log.Fatal(err)
	}
	peer := netip.MustParseAddrPort(os.Args[2])

	short, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
	defer cancel()
	reply, err := s.Request(short, peer, []byte("are you there?"))
	switch {
	case err == nil:
		fmt.Printf("%s says %q\n", reply.Addr, reply.Payload)
		return
	case errors.Is(err, rdserr.ErrTimeout): // Request has taken its datagram back
		fmt.Println("no answer in time")
	default:
		log.Fatal(err)
	}

	// What Send has queued stays queued until the peer is there, or until:
	for range 3 {
		if err := s.Send(ctx, peer, []byte("for later")); err != nil {
			log.Fatal(err)
		}
	}
	r, err := s.CancelSentTo(ctx, peer)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%d cancelled, %d in flight\n", r.Cancelled, r.InFlight)
}
