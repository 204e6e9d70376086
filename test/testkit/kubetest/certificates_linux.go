package kubetest

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

// lifetime is how long the certificates of a cluster are valid.
const lifetime = 24 * time.Hour

// authority is the certificate authority of a cluster. It signs the API server's
// certificate and those of its clients.
type authority struct {
	dir  string // of all files; NAME.crt and NAME.key for each certificate
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// caFile is the file of the authority's certificate.
func (a *authority) caFile() string { return a.file("ca", "crt") }

func (a *authority) file(name, extension string) string {
	return filepath.Join(a.dir, name+"."+extension)
}

// newAuthority creates an authority that writes its files to a folder.
func newAuthority(dir string) (*authority, error) {
	a := &authority{dir: dir}
	template := certificate(pkix.Name{CommonName: "kubetest"})
	template.IsCA, template.BasicConstraintsValid, template.KeyUsage = true, true, x509.KeyUsageCertSign
	var err error
	if a.key, err = a.newKey("ca"); err != nil {
		return nil, err
	}
	a.cert = template // its own issuer
	raw, err := a.sign("ca", template, a.key)
	if err != nil {
		return nil, err
	}
	a.cert, err = x509.ParseCertificate(raw)
	return a, err
}

// newKey writes a new key to NAME.key.
func (a *authority) newKey(name string) (*ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	raw, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, err
	}
	text := pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: raw})
	return key, os.WriteFile(a.file(name, "key"), text, 0o600)
}

// sign writes a certificate for a key to NAME.crt.
func (a *authority) sign(name string, template *x509.Certificate, key *ecdsa.PrivateKey) ([]byte, error) {
	raw, err := x509.CreateCertificate(rand.Reader, template, a.cert, &key.PublicKey, a.key)
	if err != nil {
		return nil, err
	}
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: raw})
	return raw, os.WriteFile(a.file(name, "crt"), text, 0o600)
}

// server writes the certificate of the API server.
func (a *authority) server() error {
	template := certificate(pkix.Name{CommonName: "kube-apiserver"})
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	template.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1)}
	key, err := a.newKey("server")
	if err != nil {
		return err
	}
	_, err = a.sign("server", template, key)
	return err
}

// client writes the certificate of a user and a kubeconfig that refers to it, and returns
// the kubeconfig's path.
func (a *authority) client(url, name, user, group string) (string, error) {
	template := certificate(pkix.Name{CommonName: user, Organization: []string{group}})
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	key, err := a.newKey(name)
	if err != nil {
		return "", err
	}
	if _, err := a.sign(name, template, key); err != nil {
		return "", err
	}
	return a.kubeconfig(url, name, fmt.Sprintf("{client-certificate: %s, client-key: %s}", a.file(name, "crt"), a.file(name, "key")))
}

// kubeconfig writes NAME.kubeconfig with the credentials of a user.
func (a *authority) kubeconfig(url, name, credentials string) (string, error) {
	text := fmt.Sprintf(`apiVersion: v1
kind: Config
clusters:
- name: test
  cluster: {server: %q, certificate-authority: %s}
users:
- name: test
  user: %s
contexts:
- name: test
  context: {cluster: test, user: test}
current-context: test
`, url, a.caFile(), credentials)
	path := a.file(name, "kubeconfig")
	return path, os.WriteFile(path, []byte(text), 0o600)
}

// certificate returns the template of a certificate.
func certificate(subject pkix.Name) *x509.Certificate {
	now := time.Now()
	return &x509.Certificate{
		SerialNumber: big.NewInt(now.UnixNano()), Subject: subject,
		NotBefore: now.Add(-time.Minute), NotAfter: now.Add(lifetime),
		KeyUsage: x509.KeyUsageDigitalSignature,
	}
}
