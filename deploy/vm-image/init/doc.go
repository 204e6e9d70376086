// Command init is the first process of a virtual machine whose image contains the node agent. It
// mounts file systems, loads the drivers of the virtual devices, configures the network, reads
// the boot document that the provider passed, exchanges its one-time reference for the node's
// bundle, writes the agent's configuration, and runs the agent. It switches the machine off if
// it cannot be set up, or when the agent ends because its node was removed.
//
// An image with a workload starts the same program for it, and as the shell of the agent's process
// driver.
//
// The configuration and the agent's state are on a disk that the provider added, whose serial number
// is machine.StateDiskSerial. At its first boot the machine writes an empty file system to the disk. A
// later boot finds the configuration there, and only runs the agent. Without such a disk they are in
// memory: a machine that restarts or is switched off loses its identity.
package main
