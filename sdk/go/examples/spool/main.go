// Spool sends to a reader that may be slow: while its port is congested,
// datagrams are kept here, and sent when it clears.
//
//	spool 127.0.0.2:0 127.0.0.3:5000 1000
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/netip"
	"os"
	"strconv"

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
	to := netip.MustParseAddrPort(os.Args[2])
	count, _ := strconv.Atoi(os.Args[3])

	events := s.WatchCongestion(ctx) // watches from here on
	var spool [][]byte
	for i := range count {
		spool = append(spool, fmt.Appendf(nil, "record %d", i))
	}
	refused := 0
	send := func() { // in order, as far as the port takes them
		for len(spool) > 0 {
			err := s.TrySend(to, spool[0])
			if errors.Is(err, rdserr.ErrCongested) {
				refused++
				return
			}
			if errors.Is(err, rdserr.ErrWouldBlock) { // our own send buffer: wait
				err = s.Send(ctx, to, spool[0])
			}
			if err != nil {
				log.Fatal(err)
			}
			spool = spool[1:]
		}
	}
	if send(); len(spool) > 0 {
		fmt.Printf("congested, %d spooled\n", len(spool))
		for _, err := range events { // each one may be about our port: try
			if err != nil {
				log.Fatal(err)
			}
			if send(); len(spool) == 0 {
				break
			}
		}
	}
	if err := s.Flush(ctx); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%d delivered, refused %d times\n", count, refused)
}
