//go:build !linux

package libvirtd

import "syscall"

// dieWithParent does nothing: this system has no parent death signal.
func dieWithParent(*syscall.SysProcAttr) {}
