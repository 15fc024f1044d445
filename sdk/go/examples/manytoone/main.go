// Manytoone collects reports of many sockets in one, without a connection to
// any of them.
//
//	manytoone 127.0.0.3:6000 8                    # collect 8 reports
//	manytoone 127.0.0.2:0 127.0.0.3:6000 8        # 8 workers report
package main

import (
	"context"
	"fmt"
	"log"
	"net/netip"
	"os"
	"strconv"
	"sync"

	rdsd "github.com/rdsd/rdsd/sdk/go"
)

func main() {
	client, err := rdsd.Dial("")
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	local := netip.MustParseAddrPort(os.Args[1])
	n, _ := strconv.Atoi(os.Args[len(os.Args)-1])
	if len(os.Args) == 3 {
		collect(client, local, n)
		return
	}
	to := netip.MustParseAddrPort(os.Args[2])
	var workers sync.WaitGroup
	for i := range n {
		workers.Go(func() { report(client, local, to, i) })
	}
	workers.Wait()
}

func collect(client *rdsd.Client, local netip.AddrPort, n int) {
	ctx := context.Background()
	s, err := client.Bind(ctx, local)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("collecting at", s.LocalAddr())
	bySource := map[netip.AddrPort]string{}
	for len(bySource) < n {
		d, err := s.Recv(ctx)
		if err != nil {
			log.Fatal(err)
		}
		bySource[d.Addr] = string(d.Payload)
	}
	fmt.Println(len(bySource), "workers have reported")
}

func report(client *rdsd.Client, local, to netip.AddrPort, i int) {
	ctx := context.Background()
	s, err := client.Bind(ctx, local) // port 0: each has its own
	if err != nil {
		log.Fatal(err)
	}
	if err := s.Send(ctx, to, fmt.Appendf(nil, "worker %d: all well", i)); err != nil {
		log.Fatal(err)
	}
	if err := s.Flush(ctx); err != nil { // delivered before we leave
		log.Fatal(err)
	}
}
