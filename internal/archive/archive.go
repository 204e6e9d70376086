// Package archive keeps files with parts of the audit trail in a folder.
package archive

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/gpuaas/gpuaas/schema"
)

// Folder is the folder of the archive. It implements activities.Archive. All workers share
// it. No method changes or deletes a file.
type Folder struct {
	path string
	// create makes a temporary file in the folder.
	create func() (*os.File, error)
}

// New returns the folder at the path, which must exist.
func New(path string) *Folder {
	return &Folder{path, func() (*os.File, error) { return os.CreateTemp(path, ".part-*") }}
}

// Write implements activities.Archive. The file appears under its name only when it is on
// the disk.
func (f *Folder) Write(_ context.Context, name string, fill func(io.Writer) error) (sum string, err error) {
	part, err := f.create()
	if err != nil {
		return "", errWrite(name, err)
	}
	defer func() { err = errors.Join(err, remove(part)) }()
	hash := sha256.New()
	out := bufio.NewWriterSize(io.MultiWriter(part, hash), 1<<16)
	if err := fill(out); err != nil {
		if _, typed := errors.AsType[*schema.Error](err); typed {
			return "", err
		}
		return "", errWrite(name, err)
	}
	if err := errors.Join(out.Flush(), part.Sync()); err != nil {
		return "", errWrite(name, err)
	}
	sum = hex.EncodeToString(hash.Sum(nil))
	// A link does not replace a file that exists.
	if err := os.Link(part.Name(), f.file(name)); errors.Is(err, fs.ErrExist) {
		return sum, f.check(name, sum)
	} else if err != nil {
		return "", errWrite(name, err)
	}
	return sum, f.sync(name)
}

// Check implements activities.Archive.
func (f *Folder) Check(_ context.Context, name, sum string) error { return f.check(name, sum) }

func (f *Folder) check(name, sum string) error {
	file, err := os.Open(f.file(name))
	if err != nil {
		return errMissing(name, err)
	}
	defer func() { _ = file.Close() }() // read-only
	hash := sha256.New()
	if _, err := io.Copy(hash, file); err != nil {
		return errMissing(name, err)
	}
	if hex.EncodeToString(hash.Sum(nil)) != sum {
		return schema.NewError(schema.KindInternal, "the file %s of the audit archive has another content than was recorded, so nothing is deleted", name).
			WithReason("archive_changed").WithNext("restore the file from a backup of GPUAAS_AUDIT_ARCHIVE_DIR, and find out who changed it")
	}
	return nil
}

func (f *Folder) file(name string) string { return filepath.Join(f.path, filepath.Base(name)) }

// sync makes the name of a file durable.
func (f *Folder) sync(name string) error {
	folder, err := os.Open(f.path)
	if err == nil {
		err = errors.Join(folder.Sync(), folder.Close())
	}
	if err != nil {
		return errWrite(name, err)
	}
	return nil
}

func remove(part *os.File) error {
	_ = part.Close() // what matters was synchronized
	if err := os.Remove(part.Name()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return schema.Wrap(schema.KindInternal, err, "removing a temporary file of the audit archive")
	}
	return nil
}

func errWrite(name string, cause error) error {
	return schema.NewError(schema.KindInternal, "cannot write the file %s of the audit archive, so nothing is deleted: %v", name, cause).
		WithReason("archive_unwritable").WithNext("check the free space and the permissions of GPUAAS_AUDIT_ARCHIVE_DIR on the workers")
}

func errMissing(name string, cause error) error {
	return schema.NewError(schema.KindInternal, "cannot read the file %s of the audit archive, so nothing is deleted: %v", name, cause).
		WithReason("archive_missing").WithNext("check that all workers share the folder GPUAAS_AUDIT_ARCHIVE_DIR")
}
