// Package libvirt is the provider of virtual machines on a libvirt host. It runs virsh, which
// every libvirt host has, and boots a kernel and an initramfs that contain the node agent.
//
// A machine is a domain with the UUID of its instance. Create starts it with virsh create, which
// fails if a domain with the name or the UUID is active, and then makes it persistent with virsh
// define. The order has two reasons. Only the domain that virsh create starts refers to the file
// with the one-time reference, so no definition that libvirt stores ever does. And a domain that
// is shut off has run before: no domain is defined and waits for its first start.
//
// Start reading at Provider.Create.
package libvirt
