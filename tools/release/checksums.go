package main

import (
	"context"
	"crypto"
	"crypto/ed25519"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/secure-systems-lab/go-securesystemslib/dsse"
)

const (
	// checksumsFile lists the digests of all artifacts, in the format of sha256sum.
	checksumsFile = "SHA256SUMS"
	// checksumsType is the DSSE payload type of its signature.
	checksumsType = "application/vnd.gpuaas.checksums.v1"
)

// buildChecksums writes the digests of all artifacts, and signs them if there is a key.
func (r *release) buildChecksums(ctx context.Context) error {
	names, err := artifactsIn(r.out)
	if err != nil {
		return err
	}
	var sums strings.Builder
	for _, name := range names {
		sum, _, err := digest(filepath.Join(r.out, name))
		if err != nil {
			return err
		}
		fmt.Fprintf(&sums, "%s  %s\n", sum, name)
	}
	path := filepath.Join(r.out, checksumsFile)
	if err := os.WriteFile(path, []byte(sums.String()), 0o644); err != nil { //nolint:gosec // it is public
		return err
	}
	signature := path + ".dsse.json"
	if r.key == "" {
		fmt.Fprintln(r.log, "not signed: no key was given")
		if err := os.Remove(signature); !errors.Is(err, os.ErrNotExist) {
			return err
		}
		return nil
	}
	envelope, public, err := sign(ctx, r.key, []byte(sums.String()))
	if err != nil {
		return err
	}
	fmt.Fprintln(r.log, "signed; the public key is", public)
	return os.WriteFile(signature, append(envelope, '\n'), 0o644) //nolint:gosec // it is public
}

// sign returns a DSSE envelope of the text, in the form of the agent's releases, and the
// public key in the form of GPUAAS_RELEASE_PUBKEYS.
func sign(ctx context.Context, keyFile string, text []byte) (envelope []byte, public string, err error) {
	key, err := readKey(keyFile)
	if err != nil {
		return nil, "", err
	}
	s, err := dsse.NewEnvelopeSigner(signer(key))
	if err != nil {
		return nil, "", err
	}
	signed, err := s.SignPayload(ctx, checksumsType, text)
	if err != nil {
		return nil, "", err
	}
	envelope, err = json.Marshal(signed)
	return envelope, base64.StdEncoding.EncodeToString(signer(key).public()), err
}

// readKey reads an Ed25519 key in PKCS #8 PEM form. Its errors contain nothing of the file.
func readKey(path string) (ed25519.PrivateKey, error) {
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

// signer adapts a key to the DSSE library.
type signer ed25519.PrivateKey

func (s signer) public() []byte { return s[ed25519.PrivateKeySize-ed25519.PublicKeySize:] }

// Sign implements dsse.Signer.
func (s signer) Sign(_ context.Context, data []byte) ([]byte, error) {
	return ed25519.PrivateKey(s).Sign(nil, data, crypto.Hash(0))
}

// KeyID implements dsse.Signer.
func (s signer) KeyID() (string, error) {
	sum := sha256.Sum256(s.public())
	return "release-" + hex.EncodeToString(sum[:])[:16], nil
}

// digest returns the hex SHA-256 and the size of a file.
func digest(path string) (sum string, size int64, err error) {
	file, err := os.Open(path)
	if err != nil {
		return "", 0, err
	}
	defer func() { _ = file.Close() }() // it is open for reading only
	hash := sha256.New()
	size, err = io.Copy(hash, file)
	return hex.EncodeToString(hash.Sum(nil)), size, err
}
