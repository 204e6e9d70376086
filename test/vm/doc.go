// Package vm tests the life of virtual machines on a real stack: gpuaas creates them with a real
// libvirt daemon and QEMU, they boot the image, enroll, run a workload, and are deleted.
//
// It needs bin/ (./task build), bin/vm-image-workload (./task vm-image:workload) and the programs
// of libvirttest. With -short it runs no test.
package vm
