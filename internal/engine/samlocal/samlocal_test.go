package samlocal_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	mathrand "math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/lambda"
	"github.com/sandkeeper/sandkeeper/internal/engine/installtest"
	"github.com/sandkeeper/sandkeeper/internal/engine/localtls"
	"github.com/sandkeeper/sandkeeper/internal/engine/samlocal"
	"github.com/sandkeeper/sandkeeper/internal/localfargate"
	"github.com/sandkeeper/sandkeeper/internal/localfargate/docker"
	"github.com/sandkeeper/sandkeeper/internal/names"
)

var shared = installtest.Shared{Options: installtest.Options{Fargate: listenOnBridge}}

// trust is the certificate that local Fargate shows on the bridge.
var trust *localtls.Certificate

func listenOnBridge(o *localfargate.Options) {
	bridge, err := docker.Bridge()
	if err != nil {
		panic(err) // tests ask first
	}
	if trust, err = localtls.New(filepath.Dir(o.Dir), bridge.AsSlice()); err != nil {
		panic(err)
	}
	o.Bridge = netip.AddrPortFrom(bridge, 0).String()
	if o.BridgeCertificate, err = tls.LoadX509KeyPair(trust.File, trust.KeyFile); err != nil {
		panic(err)
	}
}

func TestMain(m *testing.M) {
	localfargate.MaybeInit()
	code := m.Run()
	if err := shared.Close(); err != nil {
		code = 1
	}
	os.Exit(code)
}

const events = "../../../events"

// open is a world over the shared installation. Without Docker or SAM the test skips,
// unless CI is set and containers are what is to be tested.
func open(t *testing.T) (*samlocal.World, *installtest.Installation) {
	t.Helper()
	return openOn(t, samlocal.SpotImage)
}

func openOn(t *testing.T, image string) (*samlocal.World, *installtest.Installation) {
	t.Helper()
	asked := os.Getenv("CI") != "" && os.Getenv("SANDKEEPER_TEST_DRIVER") != ""
	if _, err := docker.Bridge(); err != nil {
		if !asked {
			t.Skip(err)
		}
		t.Fatal(err)
	}
	in := shared.Get(t)
	w, err := samlocal.Open(t.Context(), samlocal.Options{Engine: in.Engine, Outputs: in.Out, ECS: in.Fargate.BridgeURL(), Trust: trust, Image: image, Say: func(what string) { t.Log(what) }})
	if (errors.Is(err, samlocal.ErrNotInstalled) || errors.Is(err, docker.ErrNotHere)) && !asked {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
	return w, in
}

// files are the events by function.
func files(t *testing.T) map[names.Function][]string {
	t.Helper()
	all, err := filepath.Glob(filepath.Join(events, "*.json"))
	if err != nil {
		t.Fatal(err)
	}
	of := map[names.Function][]string{}
	for _, file := range all {
		f, _, _ := strings.Cut(strings.TrimSuffix(filepath.Base(file), ".json"), "-")
		of[names.Function(f)] = append(of[names.Function(f)], file)
	}
	return of
}

func TestEveryFunctionHasAnEventAndEveryEventAFunction(t *testing.T) {
	of := files(t)
	for _, f := range names.Functions {
		if len(of[f]) == 0 {
			t.Errorf("events/ has none for %s", f)
		}
	}
	for f, files := range of {
		if !slices.Contains(names.Functions, f) {
			t.Errorf("%v: there is no function %s", files, f)
		}
	}
}

// varying is what two runs of the same event need not agree about.
var varying = regexp.MustCompile(`[0-9A-Z]{26}|\d{13}|"(elapsed|requestId|nonce)": ?"?[^,"]*"?`)

func same(answer []byte) string {
	return varying.ReplaceAllString(string(bytes.TrimSpace(answer)), "~")
}

// TestEveryEventIsAnsweredAsByTheDeployedFunction: in Lambda's runtime, by SAM, warm.
func TestEveryEventIsAnsweredAsByTheDeployedFunction(t *testing.T) {
	w, in := open(t)
	log, err := os.Create(filepath.Join(t.TempDir(), "sam.log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	endpoint, stop, err := w.Serve(t.Context(), freeAddress(t), log)
	if err != nil {
		said, _ := os.ReadFile(log.Name())
		t.Fatalf("%v\n%s", err, said)
	}
	defer func() {
		if err := stop(); err != nil {
			t.Error(err)
		}
	}()
	cfg := in.Engine.Config()
	cfg.BaseEndpoint, cfg.HTTPClient = &endpoint, http.DefaultClient
	cfg.Retryer = func() aws.Retryer { return aws.NopRetryer{} }
	sam := lambda.NewFromConfig(cfg)
	for f, files := range files(t) {
		for _, file := range files {
			t.Run(filepath.Base(file), func(t *testing.T) {
				event, err := os.ReadFile(file)
				if err != nil {
					t.Fatal(err)
				}
				invoke := func(client *lambda.Client, name string) *lambda.InvokeOutput {
					out, err := client.Invoke(t.Context(), &lambda.InvokeInput{FunctionName: &name, Payload: event})
					if err != nil {
						said, _ := os.ReadFile(log.Name())
						t.Fatalf("%v\n%s", err, said)
					}
					return out
				}
				// SAM's goes first, so that what it finds is what an event usually finds.
				local, again := invoke(sam, in.Out[names.OutInstall]+"-"+string(f)), time.NewTicker(50*time.Millisecond)
				defer again.Stop()
				for bytes.Contains(local.Payload, []byte(`"provisioning"`)) { // a host asks again
					<-again.C
					local = invoke(sam, in.Out[names.OutInstall]+"-"+string(f))
				}
				deployed := invoke(in.Functions, in.Out[names.OutInstall]+"-"+string(f))
				if same(local.Payload) != same(deployed.Payload) {
					t.Errorf("SAM answers %s, the deployed function %s", local.Payload, deployed.Payload)
				}
				t.Logf("%s", local.Payload)
			})
		}
	}
}

func TestOneFunctionIsInvokedOnce(t *testing.T) {
	w, _ := open(t)
	answer, err := w.Invoke(t.Context(), names.Reap, filepath.Join(events, "reap-plan.json"))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(answer, []byte(`"considered"`)) {
		t.Errorf("answer %s", answer)
	}
	if _, err := w.Invoke(t.Context(), "none", filepath.Join(events, "reap-plan.json")); err == nil || !strings.Contains(err.Error(), "the template has none") {
		t.Errorf("a function that is not there: %v", err)
	}
}

// TestTheImageIsWhatCanBeHad: the public one where it can be pulled, else one of the spot.
func TestTheImageIsWhatCanBeHad(t *testing.T) {
	w, _ := openOn(t, "")
	answer, err := w.Invoke(t.Context(), names.Reap, filepath.Join(events, "reap-plan.json"))
	if err != nil || !bytes.Contains(answer, []byte(`"considered"`)) {
		t.Errorf("answer %s, %v", answer, err)
	}
}

// TestANamedImageIsUsedAndLeft: of it a world makes one of its own, whose containers it may
// remove.
func TestANamedImageIsUsedAndLeft(t *testing.T) {
	_, in := open(t)
	e, err := docker.Open(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	repository := "sandkeeper-named-" + strings.ToLower(rand.Text())
	if err := e.Import(t.Context(), repository+":1", docker.Busybox); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.RemoveImages(context.WithoutCancel(t.Context()), repository); err != nil {
			t.Error(err)
		}
	})
	w, err := samlocal.Open(t.Context(), samlocal.Options{Engine: in.Engine, Outputs: in.Out, ECS: in.Fargate.BridgeURL(), Trust: trust, Image: repository + ":1"})
	if err != nil {
		t.Fatal(err)
	}
	answer, err := w.Invoke(t.Context(), names.Reap, filepath.Join(events, "reap-plan.json"))
	if err := errors.Join(err, w.Close()); err != nil || !bytes.Contains(answer, []byte(`"considered"`)) {
		t.Errorf("answer %s, %v", answer, err)
	}
	if there, err := e.HasImage(t.Context(), repository+":1"); err != nil || !there {
		t.Errorf("the named image is gone with the world: %t, %v", there, err)
	}
}

// TestAnImageThatCannotBeHadIsSaid, where no other will do.
func TestAnImageThatCannotBeHadIsSaid(t *testing.T) {
	_, in := open(t)
	const none = "127.0.0.1:9/sandkeeper/none:1"
	_, err := samlocal.Open(t.Context(), samlocal.Options{Engine: in.Engine, Outputs: in.Out, ECS: in.Fargate.BridgeURL(), Trust: trust, Image: none})
	if _, refused := errors.AsType[*docker.APIError](err); !refused || !strings.Contains(err.Error(), none) {
		t.Errorf("an image that nobody has: %v", err)
	}
}

// freeAddress is where nobody listens, nor will by chance until SAM does: systems give ports
// above these to whoever names none.
func freeAddress(t *testing.T) netip.AddrPort {
	t.Helper()
	for range 100 {
		address := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), 20_000+mathrand.N(uint16(10_000)))
		if listener, err := net.Listen("tcp", address.String()); err == nil {
			listener.Close()
			return address
		}
	}
	t.Fatal("find a free port: none in 100 tries")
	return netip.AddrPort{}
}
