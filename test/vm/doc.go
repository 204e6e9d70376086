// Package vm tests the life of virtual machines on a real stack: gpuaas creates them with a real
// libvirt daemon and QEMU, or through a double of MAAS whose machines are QEMU processes. They boot
// the image, enroll, run a workload, and are deleted.
//
// It needs bin/ (./task build), curl, the programs of libvirttest, bin/vm-image-workload (./task
// vm-image:workload), and for the tests of repairs bin/vm-image (./task vm-image). Without an image its
// tests are skipped, and fail in CI. With -short no test runs.
package vm
