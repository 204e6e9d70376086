package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/gpuaas/gpuaas/schema/machine"
)

// stateDir is where the machine's disk is mounted, and keptFile has the boot document of its first
// boot, without the reference.
const (
	stateDir = "/state"
	keptFile = stateDir + "/boot.json"
)

// findDisk returns the device of the disk with the serial number, empty if there is none. blocks is
// the folder in which the kernel lists its disks.
func findDisk(blocks, serial string) (device string, err error) {
	files, err := filepath.Glob(filepath.Join(blocks, "*", "serial"))
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err == nil && strings.TrimSpace(string(text)) == serial {
			return "/dev/" + filepath.Base(filepath.Dir(file)), nil
		}
	}
	return "", err
}

// keep writes the document, without the reference, which is used up. A machine that has the file is
// set up.
func keep(path string, d machine.BootDocument) error {
	d.Reference = ""
	text, err := json.Marshal(d)
	if err != nil {
		return err
	}
	file, err := os.OpenFile(path+".new", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(text)
	if err = errors.Join(err, file.Sync(), file.Close()); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// readKept reads what keep wrote. found is false at the first boot.
func readKept(path string) (d machine.BootDocument, found bool, err error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return d, false, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &d)
	}
	if err != nil {
		return d, false, fmt.Errorf("reading the boot document of the first boot: %w", err)
	}
	return d, true, nil
}
