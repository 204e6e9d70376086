package inventory

// ProviderManual is the provider that adopts a running machine and creates none.
const ProviderManual = "manual"

// Class is how replaceable a node is. It is fixed at the first provision.
type Class string

// The lifecycle classes.
const (
	ClassPersistent Class = "persistent"
	ClassEphemeral  Class = "ephemeral"
	ClassSpot       Class = "spot"
)
