package docker

import (
	"fmt"
	"net"
	"net/netip"
)

// bridgeInterface is Docker's default bridge on this machine.
const bridgeInterface = "docker0"

// Bridge is this machine's own address on the default bridge, by which containers reach
// what listens there; no other machine does.
func Bridge() (netip.Addr, error) {
	bridge, err := net.InterfaceByName(bridgeInterface)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("find docker's bridge %s: %w", bridgeInterface, err)
	}
	own, err := bridge.Addrs()
	if err != nil {
		return netip.Addr{}, fmt.Errorf("read addresses of %s: %w", bridgeInterface, err)
	}
	for _, address := range own {
		if prefix, err := netip.ParsePrefix(address.String()); err == nil && prefix.Addr().Is4() {
			return prefix.Addr(), nil
		}
	}
	return netip.Addr{}, fmt.Errorf("find docker's bridge: %s has no address", bridgeInterface)
}

// CheckBridge says whether host:port is at [Bridge].
func CheckBridge(address string) error {
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return fmt.Errorf("want the bridge's address and a port: %w", err)
	}
	bridge, err := Bridge()
	if err != nil {
		return err
	}
	if at.Addr() != bridge {
		return fmt.Errorf("%s is not this machine's address on %s, %s", at.Addr(), bridgeInterface, bridge)
	}
	return nil
}
