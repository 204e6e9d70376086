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

// lockPatience is how long one command waits for another on the same folder: a
// first `dev up` may be building servers.
const lockPatience = 30 * time.Minute

// lock makes this command the only one at work on the layout and answers what
// ends that. The kernel gives the lock back when the process ends in any way.
func (l layout) lock(ctx context.Context, talk io.Writer) (unlock func(), err error) {
	f, err := os.OpenFile(l.lockFile(), os.O_CREATE|os.O_RDWR, privateFile)
	if err != nil {
		return nil, fmt.Errorf("locking the stack's folder: %w", err)
	}
	said := false
	got := until(ctx, lockPatience, func() bool {
		if err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); !errors.Is(err, syscall.EWOULDBLOCK) {
			return true
		}
		if !said {
			fmt.Fprintf(talk, "waiting for another gpuaas dev command at work in %s\n", l.dir)
			said = true
		}
		return false
	})
	if !got || err != nil {
		f.Close() //nolint:errcheck // nothing was written
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, fault("wait for it to end, or stop it", "another gpuaas dev command is at work in %s (%v)", l.dir, err)
	}
	if wiped(f) { // a wipe removed the file while this command waited for it
		f.Close() //nolint:errcheck // nothing was written
		return l.lock(ctx, talk)
	}
	return func() { f.Close() }, nil //nolint:errcheck // closing is the unlocking, and nothing was written
}

// wiped reports whether an open file is no longer the one of its name.
func wiped(f *os.File) bool {
	held, err := f.Stat()
	if err != nil {
		return false
	}
	named, err := os.Stat(f.Name())
	return err != nil || !os.SameFile(held, named)
}
