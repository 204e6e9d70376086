package main

import (
	"crypto/sha256"
	"encoding/hex"
	"io"
	"os"
)

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
