//go:build !linux

package devserver

import "syscall"

// dieWithParent does nothing: this system has no parent death signal.
func dieWithParent() *syscall.SysProcAttr { return nil }
