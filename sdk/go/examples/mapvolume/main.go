// Mapvolume makes a volume of another node a block device of this one, says what
// happens to it, and takes it away again when interrupted.
//
//	mapvolume 10.0.0.7 disk
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"os/signal"
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
	volumes := client.Volumes()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()

	events := volumes.Watch(ctx) // watches from here on
	m, err := volumes.Map(ctx, rdsd.MapSpec{Node: os.Args[1], Name: os.Args[2]})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(m.Device, "has", m.Info.Size, "bytes") // for qemu, fio, nbdcopy: m.URI
	for e, err := range events {
		if errors.Is(err, rdserr.ErrCanceled) { // interrupted
			break
		}
		if err != nil {
			log.Fatal(err)
		}
		if e.Mapping == m.ID {
			fmt.Println(e.Mapping, "is", e.State)
		}
	}
	end, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := volumes.Unmap(end, m.ID, true); err != nil {
		log.Fatal(err)
	}
	fmt.Println(m.ID, "is gone")
}
