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
	// sync makes the names of files durable.
	sync func() error
}

// New returns the folder at the path, which must exist.
func New(path string) *Folder {
	return &Folder{path, func() (*os.File, error) { return os.CreateTemp(path, ".part-*") }, func() error { return sync(path) }}
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
	if err := f.publish(part.Name(), name, sum); err != nil {
		return "", err
	}
	return sum, nil
}

// publish gives a part its name, durably. A link does not replace a file that exists. That one
// is complete, because it was on the disk before it had its name, but an earlier write may have
// been stopped before the name was.
func (f *Folder) publish(part, name, sum string) error {
	err := os.Link(part, f.file(name))
	if errors.Is(err, fs.ErrExist) {
		found, err := f.digest(name)
		if err != nil {
			return errMissing(name, err)
		}
		if found != sum {
			return errOccupied(name)
		}
	} else if err != nil {
		return errWrite(name, err)
	}
	if err := f.sync(); err != nil {
		return errWrite(name, err)
	}
	return nil
}

// Check implements activities.Archive.
func (f *Folder) Check(_ context.Context, name, sum string) error {
	found, err := f.digest(name)
	if err != nil {
		return errMissing(name, err)
	}
	if found != sum {
		return schema.NewError(schema.KindInternal, "the file %s of the audit archive has another content than was recorded, so nothing is deleted", name).
			WithReason("archive_changed").WithNext("restore the file from a backup of GPUAAS_AUDIT_ARCHIVE_DIR, and find out who changed it")
	}
	return nil
}

// digest returns the SHA-256 of a file.
func (f *Folder) digest(name string) (string, error) {
	file, err := os.Open(f.file(name))
	if err != nil {
		return "", err
	}
	defer func() { _ = file.Close() }() // read-only
	hash := sha256.New()
	if _, err := io.Copy(hash, file); err != nil {
		return "", err
	}
	return hex.EncodeToString(hash.Sum(nil)), nil
}

func (f *Folder) file(name string) string { return filepath.Join(f.path, filepath.Base(name)) }

func sync(path string) error {
	folder, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(folder.Sync(), folder.Close())
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

func errOccupied(name string) error {
	return schema.NewError(schema.KindInternal, "the audit archive has another file with the name %s already, so nothing is deleted", name).
		WithReason("archive_occupied").WithNext("give each environment a folder of its own; after a restore of the database, move the file to another folder and keep it")
}

func errMissing(name string, cause error) error {
	return schema.NewError(schema.KindInternal, "cannot read the file %s of the audit archive, so nothing is deleted: %v", name, cause).
		WithReason("archive_missing").WithNext("check that all workers share the folder GPUAAS_AUDIT_ARCHIVE_DIR")
}
