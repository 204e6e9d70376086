// Package sparse stores an empty file system as the few blocks that are not zero, and writes them to
// an empty disk. The image of virtual machines has no program that creates a file system.
package sparse

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
)

const (
	block  = 4096
	header = 8 // the offset, big-endian
)

// Pack returns the blocks of the file system that are not zero, each after its offset.
func Pack(fs io.Reader) (packed []byte, err error) {
	data := make([]byte, block)
	for offset := uint64(0); ; offset += block {
		n, err := io.ReadFull(fs, data)
		if errors.Is(err, io.EOF) {
			return packed, nil
		}
		if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
			return nil, err
		}
		clear(data[n:])
		if !zero(data) {
			packed = append(binary.BigEndian.AppendUint64(packed, offset), data...)
		}
	}
}

func zero(data []byte) bool { return bytes.Count(data, []byte{0}) == len(data) }

// Disk is what Format writes to.
type Disk interface {
	io.ReaderAt
	io.WriterAt
	// Sync returns when the disk has what was written.
	Sync() error
}

// Format writes the file system to the disk if the first block of the disk is zero, and reports
// whether it did. It writes that block last: a disk on which it was interrupted is formatted again.
func Format(disk Disk, packed []byte) (formatted bool, err error) {
	first := make([]byte, block)
	if _, err := disk.ReadAt(first, 0); err != nil {
		return false, err
	}
	if !zero(first) {
		return false, nil
	}
	if len(packed) == 0 || len(packed)%(header+block) != 0 || binary.BigEndian.Uint64(packed) != 0 {
		return false, errors.New("the file system of the image is damaged")
	}
	head, rest := packed[:header+block], packed[header+block:]
	for ; len(rest) > 0; rest = rest[header+block:] {
		if err := write(disk, rest); err != nil {
			return false, err
		}
	}
	if err := disk.Sync(); err != nil {
		return false, err
	}
	return true, errors.Join(write(disk, head), disk.Sync())
}

func write(disk io.WriterAt, packed []byte) error {
	_, err := disk.WriteAt(packed[header:header+block], int64(binary.BigEndian.Uint64(packed)))
	return err
}
