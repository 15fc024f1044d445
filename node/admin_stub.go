package node

import rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"

type adminServer struct {
	rdsdv1.UnimplementedAdminServer
	node *Node
}
