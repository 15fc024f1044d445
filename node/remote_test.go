package node

import (
	"errors"
	"fmt"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/node/client"
	"github.com/rdsd/rdsd/node/config"
	"github.com/rdsd/rdsd/rdserr"
)

// A remote client has no identity: it may use sockets, but neither ports that
// are somebody's nor administration.
func TestRemoteClient(t *testing.T) {
	cfg := testConfig(t)
	cfg.API.RemoteListen = fmt.Sprintf("127.0.0.1:%d", freePort(t))
	cfg.API.Insecure = true
	root := uint32(0)
	cfg.Ports = []config.PortGrant{{UID: &root, Range: config.PortRange{First: 5000, Last: 5999}, Exclusive: true}}
	n, err := New(cfg, nil)
	if err != nil {
		t.Fatal(err)
	}
	startNode(t, n)
	cc, err := grpc.NewClient(cfg.API.RemoteListen, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer cc.Close()
	bind := func(port uint16) error {
		st, err := rdsdv1.NewDatagramsClient(cc).Open(testContext(t))
		if err != nil {
			return err
		}
		m := &rdsdv1.ClientMessage{}
		m.SetBind(bindTo(cfg.RDS.Addresses[0], port))
		st.Send(m)
		_, err = st.Recv()
		return rdsdv1.ErrorFromStatus(err)
	}
	if err := bind(6000); err != nil {
		t.Errorf("a free port: %v", err)
	}
	for _, port := range []uint16{5000, 1000} {
		if err := bind(port); !errors.Is(err, rdserr.ErrPerm) {
			t.Errorf("port %d: %v", port, err)
		}
	}
	admin := rdsdv1.NewAdminClient(cc)
	r := &rdsdv1.CloseSocketRequest{}
	r.SetLocal(client.EndpointPB(endpointOf(cfg, 6000)))
	if _, err := admin.CloseSocket(testContext(t), r); !errors.Is(rdsdv1.ErrorFromStatus(err), rdserr.ErrPerm) {
		t.Errorf("CloseSocket: %v", err)
	}
	socks, err := admin.ListSockets(testContext(t), &rdsdv1.ListSocketsRequest{})
	if err != nil || len(socks.GetSocket()) != 1 || socks.GetSocket()[0].GetUid() != config.NobodyID {
		t.Errorf("sockets %v, %v", socks, err)
	}
}
