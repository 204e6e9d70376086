package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/gpuaas/gpuaas/schema/trust"
)

const (
	// checksumsFile lists the digests of all artifacts, in the format of sha256sum.
	checksumsFile = "SHA256SUMS"
	// checksumsType is the DSSE payload type of its signature, an envelope like those of the
	// agent's releases.
	checksumsType = "application/vnd.gpuaas.checksums.v1"
)

// buildChecksums writes the digests of all artifacts, and signs them if there is a key.
func (r *release) buildChecksums(context.Context) error {
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
	key, err := trust.ReadReleaseKey(r.key)
	if err != nil {
		return err
	}
	envelope, err := trust.SignEnvelope(checksumsType, []byte(sums.String()), key)
	if err != nil {
		return err
	}
	fmt.Fprintln(r.log, "signed; the public key is", trust.ReleasePublicKey(key))
	return os.WriteFile(signature, append(envelope, '\n'), 0o644) //nolint:gosec // it is public
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
