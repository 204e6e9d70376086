package agent

func (h hostFacts) kernel() string { return readLine(h.file("/proc/sys/kernel/osrelease")) }

func platformName() string { return "linux" }

func platformMemory() int64 { return 0 }

// bootID is the same from one boot to the next and differs between boots.
func bootID(root string) string {
	return readLine(hostFacts{root: root}.file("/proc/sys/kernel/random/boot_id"))
}

// uptime is the host's, in whole seconds; zero when unknown.
func uptime(root string) int64 {
	return parseUptime(readLine(hostFacts{root: root}.file("/proc/uptime")))
}
