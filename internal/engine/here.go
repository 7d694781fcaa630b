package engine

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"syscall"
	"time"
)

// ErrElsewhere says that a local command was about to connect to another machine.
var ErrElsewhere = errors.New("refuse to connect to anything but this machine")

// HereAlone has a transport connect to this machine alone, without a proxy: whatever an
// endpoint's name resolves to, and wherever an answer redirects. [Guard] looks at names
// before anything is asked; this looks at the address that is dialled.
func HereAlone(t *http.Transport) {
	t.Proxy = nil
	t.DialContext = (&net.Dialer{Timeout: 10 * time.Second, KeepAlive: 30 * time.Second, Control: loopbackOnly}).DialContext
}

// loopbackOnly is asked about every address before it is connected to.
func loopbackOnly(_, address string, _ syscall.RawConn) error {
	at, err := netip.ParseAddrPort(address)
	if err != nil || !at.Addr().Unmap().IsLoopback() {
		return fmt.Errorf("%w: %s", ErrElsewhere, address)
	}
	return nil
}
