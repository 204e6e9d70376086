package repair

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"
)

// The size of the file of WriteDisk, and of its pieces.
const (
	diskBytes = 64 << 20
	diskPiece = 1 << 20
)

// WriteDisk writes random data to a new file in a folder, syncs it, reads it back and compares. It
// returns how long that took. The file is removed.
func WriteDisk(ctx context.Context, folder string) (detail string, err error) {
	path := filepath.Join(folder, "verify.tmp")
	f, err := os.Create(path)
	if err != nil {
		return "", err
	}
	defer func() {
		err = errors.Join(err, f.Close(), os.Remove(path))
	}()
	piece := make([]byte, diskPiece)
	if _, err := rand.Read(piece); err != nil {
		return "", err
	}
	begin := time.Now()
	for range diskBytes / diskPiece {
		if err := ctx.Err(); err != nil {
			return "", fmt.Errorf("writing %s: %w", path, err)
		}
		if _, err := f.Write(piece); err != nil {
			return "", err
		}
	}
	if err := f.Sync(); err != nil {
		return "", err
	}
	wrote := time.Since(begin)
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return "", err
	}
	read := make([]byte, diskPiece)
	for range diskBytes / diskPiece {
		if _, err := io.ReadFull(f, read); err != nil {
			return "", err
		}
		if !bytes.Equal(read, piece) {
			return "", fmt.Errorf("%s has other bytes than were written", path)
		}
	}
	return fmt.Sprintf("wrote and synced %d MiB in %s, and read the same bytes", diskBytes>>20, wrote.Round(time.Millisecond)), nil
}
