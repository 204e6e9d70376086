//go:build !linux

package devserver

import "syscall"

// dieWithParent does what it can where the kernel does not help: nothing.
func dieWithParent() *syscall.SysProcAttr { return nil }
