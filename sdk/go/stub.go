package rdsd

import (
	"context"
	"iter"
	"net/netip"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
)

type Client struct{}
type Option func(*Client)
type BindOption func(*Socket)
type Socket struct{}

type DatagramError struct {
	Index int
	Err   error
}
type BatchError struct{ Errors []DatagramError }

func (e *BatchError) Error() string { return "batch" }

func Dial(target string, opts ...Option) (*Client, error) { return nil, nil }
func (c *Client) Close() error                            { return nil }
func (c *Client) Admin() rdsdv1.AdminClient               { return nil }
func (c *Client) Bind(ctx context.Context, local netip.AddrPort, opts ...BindOption) (*Socket, error) {
	return nil, nil
}
func WithSendBuffer(bytes int) BindOption                                      { return nil }
func WithRecvBuffer(bytes int) BindOption                                      { return nil }
func WithLabel(label string) BindOption                                        { return nil }
func WithRecvWindow(datagrams int, bytes int) BindOption                       { return nil }
func WithOutcomes() BindOption                                                 { return nil }
func WithReconnect(on bool) BindOption                                         { return nil }
func WithCongestionMask(mask uint64) BindOption                                { return nil }
func (s *Socket) LocalAddr() netip.AddrPort                                    { return netip.AddrPort{} }
func (s *Socket) Send(ctx context.Context, dst netip.AddrPort, p []byte) error { return nil }
func (s *Socket) SendTag(ctx context.Context, dst netip.AddrPort, p []byte) (uint64, error) {
	return 0, nil
}
func (s *Socket) TrySend(dst netip.AddrPort, p []byte) error { return nil }
func (s *Socket) SendBatch(ctx context.Context, ds []Datagram) (accepted int, err error) {
	return 0, nil
}
func (s *Socket) Recv(ctx context.Context) (Datagram, error)                  { return Datagram{}, nil }
func (s *Socket) RecvBatch(ctx context.Context, into []Datagram) (int, error) { return 0, nil }
func (s *Socket) All(ctx context.Context) iter.Seq2[Datagram, error]          { return nil }
func (s *Socket) Request(ctx context.Context, dst netip.AddrPort, p []byte) (Datagram, error) {
	return Datagram{}, nil
}
func (s *Socket) CancelSentTo(ctx context.Context, dst netip.AddrPort) (CancelResult, error) {
	return CancelResult{}, nil
}
func (s *Socket) Flush(ctx context.Context) error { return nil }
func (s *Socket) Congested(ctx context.Context, dst netip.AddrPort) (bool, error) {
	return false, nil
}
func (s *Socket) WatchCongestion(ctx context.Context) iter.Seq2[CongestionEvent, error] { return nil }
func (s *Socket) Outcomes(ctx context.Context) iter.Seq2[Outcome, error]                { return nil }
func (s *Socket) PeekSize(ctx context.Context) (n int, ok bool, err error)              { return 0, false, nil }
func (s *Socket) Close() error                                                          { return nil }
