// Package systemdtest boots machines with a real systemd in namespaces of this machine. It
// works on Linux only.
package systemdtest
