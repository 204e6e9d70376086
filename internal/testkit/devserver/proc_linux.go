package devserver

import "syscall"

// dieWithParent has the kernel end the server when the test process dies, however
// it does.
func dieWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
