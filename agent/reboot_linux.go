package agent

import "syscall"

// rebootKernel restarts a machine that has no systemd at once, as the init of a virtual machine that
// runs only the agent.
func rebootKernel() error {
	syscall.Sync()
	return syscall.Reboot(syscall.LINUX_REBOOT_CMD_RESTART)
}
