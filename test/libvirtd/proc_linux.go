package libvirtd

import "syscall"

// dieWithParent makes the kernel kill the daemon when the test process dies.
func dieWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGKILL }
