package samlocal

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"net/url"
	"sync"
	"time"
)

// forwarder lets containers reach what listens on loopback, at the bridge's address.
type forwarder struct {
	url      string
	target   string
	listener net.Listener

	mu    sync.Mutex
	conns map[net.Conn]bool
	wg    sync.WaitGroup
}

// openForwarder forwards a free port of the bridge to an endpoint.
func openForwarder(bridge netip.Addr, endpoint string) (*forwarder, error) {
	to, err := url.Parse(endpoint)
	if err != nil {
		return nil, fmt.Errorf("forward to %s: %w", endpoint, err)
	}
	listener, err := net.Listen("tcp", netip.AddrPortFrom(bridge, 0).String())
	if err != nil {
		return nil, fmt.Errorf("forward to %s: %w", endpoint, err)
	}
	f := &forwarder{url: to.Scheme + "://" + listener.Addr().String(), target: to.Host, listener: listener, conns: map[net.Conn]bool{}}
	f.wg.Go(f.accept)
	return f, nil
}

func (f *forwarder) accept() {
	for {
		from, err := f.listener.Accept()
		if err != nil {
			return // closed
		}
		f.wg.Go(func() { f.pass(from) })
	}
}

func (f *forwarder) pass(from net.Conn) {
	to, err := net.DialTimeout("tcp", f.target, time.Second)
	if err != nil {
		from.Close()
		return
	}
	f.mu.Lock()
	f.conns[from], f.conns[to] = true, true
	f.mu.Unlock()
	var both sync.WaitGroup
	both.Go(func() { copyHalf(to, from) })
	both.Go(func() { copyHalf(from, to) })
	both.Wait()
	f.mu.Lock()
	delete(f.conns, from)
	delete(f.conns, to)
	f.mu.Unlock()
	from.Close()
	to.Close()
}

// copyHalf passes on one direction up to its end, and then the end.
func copyHalf(to, from net.Conn) {
	_, _ = io.Copy(to, from) // either side may go
	if half, ok := to.(*net.TCPConn); ok {
		_ = half.CloseWrite()
	}
}

func (f *forwarder) close() {
	f.listener.Close()
	f.mu.Lock()
	for conn := range f.conns {
		conn.Close()
	}
	f.mu.Unlock()
	f.wg.Wait()
}

// serveWithin is how long SAM may take to build its image and to warm every function.
const serveWithin = 3 * time.Minute

// awaitServer waits until something answers at the address.
func awaitServer(ctx context.Context, address netip.AddrPort, exited <-chan struct{}) error {
	ctx, cancel := context.WithTimeout(ctx, serveWithin)
	defer cancel()
	pace := time.NewTicker(100 * time.Millisecond)
	defer pace.Stop()
	for {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", address.String())
		if err == nil {
			return conn.Close()
		}
		select {
		case <-pace.C:
		case <-exited:
			return errors.New("serve functions: SAM ended, see its log")
		case <-ctx.Done():
			return fmt.Errorf("serve functions: %w", context.Cause(ctx))
		}
	}
}
