//go:build !linux

package postgres

import "os/exec"

// endWithParent does nothing: the program ends by itself.
func endWithParent(*exec.Cmd) {}
