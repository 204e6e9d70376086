package schema

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
)

// SHA256Hex returns the SHA-256 of data in lower-case hex, the form of every
// digest on the wire and in the database.
func SHA256Hex(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// IsSHA256Hex reports whether s has the form that SHA256Hex returns.
func IsSHA256Hex(s string) bool {
	raw, err := hex.DecodeString(s)
	return err == nil && len(raw) == sha256.Size && strings.ToLower(s) == s
}
