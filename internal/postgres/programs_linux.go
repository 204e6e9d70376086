package postgres

import (
	"os/exec"
	"syscall"
)

// endWithParent makes the program end if this process is killed.
func endWithParent(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM} }
