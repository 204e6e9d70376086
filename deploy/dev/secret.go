package dev

import (
	"crypto/rand"
	"errors"
	"io/fs"
	"os"
	"strings"

	"github.com/gpuaas/gpuaas/deploy/dev/internal/statefile"
)

// ensureSecret returns the secret in file and generates it on the first call.
func ensureSecret(file string) (string, error) {
	raw, err := os.ReadFile(file)
	if err == nil && len(raw) > 0 {
		return strings.TrimSpace(string(raw)), nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	secret := rand.Text() + rand.Text()
	return secret, statefile.Write(file, []byte(secret+"\n"))
}
