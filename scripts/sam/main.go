// Command sam runs functions of the stack in Lambda's own runtime interface, by SAM on
// this machine's Docker engine, against a local engine and a local Fargate of its own:
// one function once, or all until it is interrupted.
package main

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/signal"
	"slices"
	"syscall"

	"github.com/sandkeeper/sandkeeper/internal/engine"
	"github.com/sandkeeper/sandkeeper/internal/engine/localtls"
	"github.com/sandkeeper/sandkeeper/internal/engine/samlocal"
	"github.com/sandkeeper/sandkeeper/internal/localfargate"
	"github.com/sandkeeper/sandkeeper/internal/localfargate/docker"
	"github.com/sandkeeper/sandkeeper/internal/names"
)

const usage = `usage: sam [-image IMAGE] [-addr ADDRESS] invoke FUNCTION EVENT | start
(make sam-invoke FN=reap EVENT=events/reap-tick.json, make sam-start)`

func main() {
	localfargate.MaybeInit()
	image := flag.String("image", "", "image to build on: public for AWS's own, spot for one made on the spot, or a name (default: public, or spot where that cannot be had)")
	addr := flag.String("addr", "127.0.0.1:0", "loopback address of start")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *image, *addr, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, image, addr string, args []string) (err error) {
	act, err := parse(args, addr)
	if err != nil {
		return err
	}
	bridge, err := docker.Bridge()
	if err != nil {
		return err
	}
	e, err := engine.Start(ctx, engine.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.Stop()) }()
	sender, err := localfargate.NewSender(e.Endpoint, engine.Region, "")
	if err != nil {
		return err
	}
	trust, err := localtls.New(e.Dir, bridge.AsSlice())
	if err != nil {
		return err
	}
	pair, err := tls.LoadX509KeyPair(trust.File, trust.KeyFile)
	if err != nil {
		return fmt.Errorf("read certificate: %w", err)
	}
	fargate, err := localfargate.New(localfargate.Options{
		Bridge: netip.AddrPortFrom(bridge, 0).String(), BridgeCertificate: pair, Events: sender.Send,
	})
	if err != nil {
		return err
	}
	if err := fargate.Start(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, fargate.Close()) }()
	out, err := e.Deploy(ctx, engine.Deployment{ECSEndpoint: fargate.URL()})
	if err != nil {
		return err
	}
	w, err := samlocal.Open(ctx, samlocal.Options{Engine: e, Outputs: out, ECS: fargate.BridgeURL(), Trust: trust, Image: image, Say: say})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	return act(ctx, &installation{w, e, fargate, out})
}

func say(what string) { fmt.Fprintln(os.Stderr, what) }

// installation is what functions run against.
type installation struct {
	sam     *samlocal.World
	engine  *engine.Engine
	fargate *localfargate.Server
	out     engine.Outputs
}

type action func(context.Context, *installation) error

// parse reads the command before anything is started.
func parse(args []string, addr string) (action, error) {
	switch {
	case len(args) == 3 && args[0] == "invoke":
		f := names.Function(args[1])
		if !slices.Contains(names.Functions, f) {
			return nil, fmt.Errorf("function %q: want one of %v", f, names.Functions)
		}
		if data, err := os.ReadFile(args[2]); err != nil || !json.Valid(data) {
			return nil, errors.Join(fmt.Errorf("event %q: want a file with JSON", args[2]), err)
		}
		return func(ctx context.Context, in *installation) error {
			answer, err := in.sam.Invoke(ctx, f, args[2])
			if err == nil {
				fmt.Printf("%s\n", answer)
			}
			return err
		}, nil
	case len(args) == 1 && args[0] == "start":
		at, err := free(addr)
		if err != nil {
			return nil, err
		}
		return func(ctx context.Context, in *installation) error { return start(ctx, in, at) }, nil
	}
	return nil, errors.New(usage)
}

// free is the address itself, or one with a free port.
func free(addr string) (netip.AddrPort, error) {
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("address of the functions: %w", err)
	}
	defer listener.Close()
	return netip.ParseAddrPort(listener.Addr().String())
}

func start(ctx context.Context, in *installation, at netip.AddrPort) error {
	endpoint, stop, err := in.sam.Serve(ctx, at, os.Stderr)
	if err != nil {
		return err
	}
	err = json.NewEncoder(os.Stdout).Encode(map[string]any{
		"functions": endpoint, "endpoint": in.engine.Endpoint, "ecsEndpoint": in.fargate.URL(), "outputs": in.out,
	})
	if err == nil {
		<-ctx.Done()
	}
	return errors.Join(err, stop())
}
