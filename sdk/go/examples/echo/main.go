// Echo sends back what it receives, or sends a text and prints what comes back.
//
//	echo 127.0.0.3:7                        # echo server
//	echo 127.0.0.2:0 127.0.0.3:7 "hello"    # client
package main

import (
	"context"
	"fmt"
	"log"
	"net/netip"
	"os"
	"time"

	rdsd "github.com/rdsd/rdsd/sdk/go"
)

func main() {
	client, err := rdsd.Dial("") // $RDSD_SOCKET, or /run/rdsd/rdsd.sock
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	ctx := context.Background()
	s, err := client.Bind(ctx, netip.MustParseAddrPort(os.Args[1]))
	if err != nil {
		log.Fatal(err)
	}
	if len(os.Args) == 2 {
		fmt.Println("echo at", s.LocalAddr())
		for d, err := range s.All(ctx) {
			if err != nil {
				log.Fatal(err)
			}
			if err := s.Reply(ctx, d, d.Payload); err != nil {
				log.Print(err)
			}
		}
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	reply, err := s.Request(ctx, netip.MustParseAddrPort(os.Args[2]), []byte(os.Args[3]))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s says %q\n", reply.Addr, reply.Payload)
}
