package host

func (h Host) kernel() string { return readLine(h.file("/proc/sys/kernel/osrelease")) }

func platformMemory() int64 { return 0 }

// BootID is constant during one boot and differs between boots.
func BootID(root string) string {
	return readLine(Host{root: root}.file("/proc/sys/kernel/random/boot_id"))
}

// Uptime is the host's, in whole seconds; zero when unknown.
func Uptime(root string) int64 {
	return parseUptime(readLine(Host{root: root}.file("/proc/uptime")))
}
