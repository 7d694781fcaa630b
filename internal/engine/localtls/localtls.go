// Package localtls makes certificates for servers of this machine, where a client
// insists on TLS or a server knows how to check a caller only behind it. Its rule: a
// certificate is trusted by the name of its file, so nothing of this machine's trust
// changes.
package localtls

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// Certificate is a server's own: it signs itself.
type Certificate struct {
	// File and KeyFile are its two halves, PEM.
	File, KeyFile string
	// Pool trusts it and nothing else.
	Pool *x509.CertPool
}

// life outlives every test and demo.
const life = 7 * 24 * time.Hour

// New makes a certificate for loopback and the addresses given, in two files in dir.
func New(dir string, also ...net.IP) (*Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make certificate: %w", err)
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber:          big.NewInt(now.UnixNano()),
		Subject:               pkix.Name{CommonName: "sandkeeper local"},
		NotBefore:             now.Add(-time.Hour),
		NotAfter:              now.Add(life),
		KeyUsage:              x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true,
		IsCA:                  true,
		IPAddresses:           append([]net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback}, also...),
		DNSNames:              []string{"localhost"},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return nil, fmt.Errorf("make certificate: %w", err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("make certificate: %w", err)
	}
	c := &Certificate{File: filepath.Join(dir, "local.pem"), KeyFile: filepath.Join(dir, "local.key"), Pool: x509.NewCertPool()}
	public := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	c.Pool.AppendCertsFromPEM(public)
	for file, data := range map[string][]byte{
		c.File:    public,
		c.KeyFile: pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}),
	} {
		if err := os.WriteFile(file, data, 0o600); err != nil {
			return nil, fmt.Errorf("make certificate: %w", err)
		}
	}
	return c, nil
}
