package trust

import (
	"context"
	"crypto"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"os"

	"github.com/secure-systems-lab/go-securesystemslib/dsse"
)

// ReadReleaseKey reads the private key of releases from a file: an Ed25519 key in PKCS #8
// PEM form. Its errors contain nothing of the file.
func ReadReleaseKey(path string) (ed25519.PrivateKey, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("reading the key: %w", err)
	}
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, errors.New("the key is not in PEM form")
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	key, ok := parsed.(ed25519.PrivateKey)
	if err != nil || !ok {
		return nil, errors.New("the key is not an Ed25519 key in PKCS #8 form")
	}
	return key, nil
}

// ReleasePublicKey returns the public key of a release key in the form of
// GPUAAS_RELEASE_PUBKEYS, which ParseReleaseKeys parses.
func ReleasePublicKey(key ed25519.PrivateKey) string {
	return base64.StdEncoding.EncodeToString(releaseSigner(key).public())
}

// SignEnvelope returns a DSSE envelope of the body, signed by a release key. OpenEnvelope
// verifies it.
func SignEnvelope(payloadType string, body []byte, key ed25519.PrivateKey) ([]byte, error) {
	signer, err := dsse.NewEnvelopeSigner(releaseSigner(key))
	if err != nil {
		return nil, err
	}
	e, err := signer.SignPayload(context.Background(), payloadType, body)
	if err != nil {
		return nil, err
	}
	return json.Marshal(e)
}

// releaseSigner adapts a key to the DSSE library.
type releaseSigner ed25519.PrivateKey

func (s releaseSigner) public() ed25519.PublicKey {
	return ed25519.PublicKey(s[ed25519.PrivateKeySize-ed25519.PublicKeySize:])
}

// Sign implements dsse.Signer.
func (s releaseSigner) Sign(_ context.Context, data []byte) ([]byte, error) {
	return ed25519.PrivateKey(s).Sign(nil, data, crypto.Hash(0))
}

// KeyID implements dsse.Signer.
func (s releaseSigner) KeyID() (string, error) { return releaseKey(s.public()).KeyID, nil }
