//go:build !linux

package temporaltest

import "syscall"

// dieWithParent does what it can where the kernel does not help: nothing.
func dieWithParent() *syscall.SysProcAttr { return nil }
