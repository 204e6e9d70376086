// Package vm tests the life of virtual machines on a real stack: gpuaas creates them with a real
// libvirt daemon and QEMU, or through a double of MAAS whose machines are QEMU processes. They boot
// the image, enroll, run a workload, and are deleted.
//
// It needs bin/ (./task build), bin/vm-image-workload (./task vm-image:workload), curl and the
// programs of libvirttest. With -short it runs no test.
package vm
