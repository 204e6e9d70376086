//go:build !linux

package postgres

import "os/exec"

// endWithParent does nothing: no other system ends a program with its parent.
func endWithParent(*exec.Cmd) {}
