package dev

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"
)

// lockTimeout is how long a command waits for another one on the same folder. The
// first `dev up` may take minutes to build servers.
const lockTimeout = 30 * time.Minute

// lock acquires the layout for this command and returns the function that releases
// it. The kernel releases the lock when the process exits.
func (l layout) lock(ctx context.Context, messages io.Writer) (unlock func(), err error) {
	f, err := os.OpenFile(l.lockFile(), os.O_CREATE|os.O_RDWR, privateFile)
	if err != nil {
		return nil, fmt.Errorf("locking the stack's folder: %w", err)
	}
	reported := false
	got := until(ctx, lockTimeout, func() bool {
		if err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); !errors.Is(err, syscall.EWOULDBLOCK) {
			return true
		}
		if !reported {
			fmt.Fprintf(messages, "waiting for another command on the stack in %s\n", l.dir)
			reported = true
		}
		return false
	})
	if !got || err != nil {
		f.Close() //nolint:errcheck // nothing was written
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, stackError("wait for it to finish, or stop it", "another command is running on the stack in %s (%v)", l.dir, err)
	}
	if replaced(f) { // a wipe removed the file while this command waited
		f.Close() //nolint:errcheck // nothing was written
		return l.lock(ctx, messages)
	}
	return func() { f.Close() }, nil //nolint:errcheck // closing releases the lock, and nothing was written
}

// replaced reports whether an open file no longer has its name.
func replaced(f *os.File) bool {
	held, err := f.Stat()
	if err != nil {
		return false
	}
	named, err := os.Stat(f.Name())
	return err != nil || !os.SameFile(held, named)
}
