package machine

// BootDocumentName is the name of a BootDocument in the firmware configuration (fw_cfg) of a
// virtual machine.
const BootDocumentName = "opt/gpuaas/bootstrap"

// StateDiskSerial is the serial number of the disk on which a virtual machine keeps its configuration
// and the state of its agent.
const StateDiskSerial = "gpuaas-state"

// BootDocument is what a machine whose image contains the agent reads on its first boot. It
// contains the one-time reference: a file that holds it has mode 0600.
type BootDocument struct {
	// BaseURL is the address of the node API, and CABundlePEM verifies its certificate.
	BaseURL     string `json:"base_url"`
	CABundlePEM string `json:"ca_bundle_pem,omitempty"`
	// Reference is the one-time reference of the bundle.
	Reference string `json:"reference"`
	// Host is the machine's host name.
	Host string `json:"host"`
	// Hosts are addresses by host name, for names that are not in DNS.
	Hosts map[string]string `json:"hosts,omitempty"`
}
