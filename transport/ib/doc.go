// Package ib is the place of the verbs transport: reliable connected queue
// pairs through the RDMA connection manager, RDS 3.1 as the kernel's
// rds_rdma speaks it. Nothing is built yet; the daemon offers TCP alone and no
// configuration names verbs. It will implement transport.Provider and pass
// transport/transporttest, behind the build tag "rdma".
package ib
