package disk

import (
	"errors"
	"syscall"
)

// ballastBytes is enough for several identities and hundreds of journal entries.
const ballastBytes = 1 << 20

// BallastFile is the name of the ballast in the state folder.
const BallastFile = "ballast"

// KeepBallast makes the ballast again unless it exists. The space that it holds is the
// agent's on a disk that others have filled. An error means that the disk is still full.
func (s StateDir) KeepBallast() error {
	if s.Ballast == "" || s.holds() {
		return nil
	}
	if err := s.put(s.Ballast, ballast()); err != nil {
		s.Remove(s.Ballast) //nolint:errcheck // best effort; the write's error is the one to report
		return err
	}
	return nil
}

// holds reports whether the ballast exists in full: a crash may leave a part.
func (s StateDir) holds() bool {
	data, err := s.ReadFile(s.Ballast)
	return err == nil && len(data) == ballastBytes
}

// free removes the ballast and reports whether there was one.
func (s StateDir) free() bool { return s.Ballast != "" && s.Remove(s.Ballast) == nil }

// Full reports whether a write failed because the disk is full.
func Full(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

// ballast is data that no file system stores in less space.
func ballast() []byte {
	data := make([]byte, ballastBytes)
	for i, x := 0, uint32(1); i < len(data); i++ {
		x = x*1664525 + 1013904223
		data[i] = byte(x >> 24)
	}
	return data
}
