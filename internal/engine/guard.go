package engine

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Env is the complete environment of a local command: nothing of the caller's
// but PATH, so that no profile, token or endpoint of an account gets in.
func (e *Engine) Env() []string {
	env := []string{
		"PATH=" + os.Getenv("PATH"),
		"HOME=" + filepath.Join(e.Dir, "home"),
		"LANG=C.UTF-8",
		"AWS_ENDPOINT_URL=" + e.Endpoint,
		"AWS_ENDPOINT_URL_ECS=" + e.ECSEndpoint,
		"AWS_ACCESS_KEY_ID=" + key,
		"AWS_SECRET_ACCESS_KEY=" + key,
		"AWS_REGION=" + Region,
		"AWS_DEFAULT_REGION=" + Region,
		"AWS_CONFIG_FILE=" + os.DevNull,
		"AWS_SHARED_CREDENTIALS_FILE=" + os.DevNull,
		"AWS_EC2_METADATA_DISABLED=true",
		// Whoever asks for another host gets a refused connection.
		"HTTP_PROXY=http://127.0.0.1:9",
		"HTTPS_PROXY=http://127.0.0.1:9",
		"NO_PROXY=127.0.0.1,localhost,::1",
	}
	if e.tls != nil {
		env = append(env, "AWS_CA_BUNDLE="+e.tls.File, "SSL_CERT_FILE="+e.tls.File, "NODE_EXTRA_CA_CERTS="+e.tls.File)
	}
	return env
}

// required are the variables that a local command must have, with their values.
var required = map[string]string{
	"AWS_ACCESS_KEY_ID":           key,
	"AWS_SECRET_ACCESS_KEY":       key,
	"AWS_CONFIG_FILE":             os.DevNull,
	"AWS_SHARED_CREDENTIALS_FILE": os.DevNull,
	"AWS_EC2_METADATA_DISABLED":   "true",
}

// forbidden are the variables that would bring an account in.
var forbidden = []string{
	"AWS_PROFILE", "AWS_DEFAULT_PROFILE", "AWS_SESSION_TOKEN", "AWS_SECURITY_TOKEN",
	"AWS_ROLE_ARN", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS",
}

// Guard says whether a command with this environment, as in [os.Environ], can
// only talk to this machine: every AWS_ENDPOINT_URL* is a loopback address,
// credentials are test/test, and no profile, role, token or file can replace
// them. The error names everything that is wrong; no value of a credential is
// ever in it.
func Guard(env []string) error {
	set := map[string]string{}
	for _, entry := range env {
		name, value, _ := strings.Cut(entry, "=")
		set[name] = value // as in a process: the last one counts
	}
	var wrong []error
	if set["AWS_ENDPOINT_URL"] == "" {
		wrong = append(wrong, errors.New("AWS_ENDPOINT_URL is not set"))
	}
	for _, name := range slices.Sorted(maps.Keys(set)) {
		if err := guardVariable(name, set[name]); err != nil {
			wrong = append(wrong, err)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(required)) {
		if set[name] != required[name] {
			wrong = append(wrong, fmt.Errorf("%s is not %q", name, required[name]))
		}
	}
	if len(wrong) == 0 {
		return nil
	}
	return fmt.Errorf("refuse to run against anything but this machine: %w", errors.Join(wrong...))
}

// GuardContainer is [Guard] for what a container of this machine gets: its endpoints
// may also be at bridge, this machine's address on the containers' network, and it has
// none of a local command's files to be kept from.
func GuardContainer(env map[string]string, bridge netip.Addr) error {
	var wrong []error
	if env["AWS_ENDPOINT_URL"] == "" {
		wrong = append(wrong, errors.New("AWS_ENDPOINT_URL is not set"))
	}
	for _, name := range slices.Sorted(maps.Keys(env)) {
		if strings.HasPrefix(name, "AWS_ENDPOINT_URL") && at(env[name]) == bridge {
			continue
		}
		if err := guardVariable(name, env[name]); err != nil {
			wrong = append(wrong, err)
		}
	}
	if len(wrong) == 0 {
		return nil
	}
	return fmt.Errorf("refuse a container that would reach anything but this machine: %w", errors.Join(wrong...))
}

// at is the literal address of a URL, the zero one if it has none.
func at(endpoint string) netip.Addr {
	u, err := url.Parse(endpoint)
	if err != nil {
		return netip.Addr{}
	}
	address, _ := netip.ParseAddr(u.Hostname()) // a name is no address
	return address
}

func guardVariable(name, value string) error {
	switch {
	case strings.HasPrefix(name, "AWS_ENDPOINT_URL"):
		if value != "" && !Loopback(value) {
			return fmt.Errorf("%s is not a loopback URL: %s", name, value)
		}
	case strings.HasPrefix(name, "AWS_CONTAINER_"), slices.Contains(forbidden, name):
		if value != "" {
			return fmt.Errorf("%s is set", name)
		}
	}
	return nil
}

// Loopback says whether an endpoint is this machine by its literal address or as
// localhost. Other names could resolve to anything.
func Loopback(endpoint string) bool {
	u, err := url.Parse(endpoint)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") {
		return false
	}
	host := u.Hostname()
	if strings.EqualFold(host, "localhost") {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}
