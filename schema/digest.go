package schema

import (
	"crypto/sha256"
	"encoding/hex"
)

// SHA256Hex returns the SHA-256 of b in lower-case hex.
func SHA256Hex(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}
