package cli

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"io"
	"io/fs"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpuaas/gpuaas/schema/machine"
)

func provisionVerb() verb {
	return verb{
		short: "Make a node ready for work",
		long: `Acquires the machine from its provider, waits for the node's agent, collects facts,
probes the node's health and compares both with the SKU. Then the node is active. If the
machine does not match its registration, the operation parks.

The provider "manual" adopts the host as it is; enroll the node first. A provider that
creates machines creates one, and its agent enrolls. --provider-region, --type and --image
choose the machine from what gpuaas provider show PROVIDER lists. Without them, the provider
chooses. --dry-run shows whether the provider has that machine.`,
		example: `  gpuaas node provision gpu-17
  gpuaas node provision gpu-17 --provider-region fra1 --type gpu-8 --ssh-key ~/.ssh/id_ed25519.pub --dry-run
  gpuaas node provision gpu-17 --no-wait -o json`,
		flags: func(e *env, c *cobra.Command, o *lifecycleOptions) { addMachine(e, c, &o.options.Machine, &o.sshKeys) },
	}
}

// addMachine adds the flags that choose a machine, and the files of SSH keys.
func addMachine(e *env, c *cobra.Command, m *machine.Options, keys *[]string) {
	f := c.Flags()
	for _, o := range []struct {
		value       *string
		name, usage string
		offered     func(machine.Provider) []string
	}{
		{&m.Region, "provider-region", "region of the provider to create the machine in", func(p machine.Provider) []string { return p.Regions }},
		{&m.Type, "type", "type of the machine to create", typeIDs},
		{&m.Image, "image", "image that the machine boots", func(p machine.Provider) []string { return p.Images }},
	} {
		f.StringVar(o.value, o.name, "", o.usage)
		completes(c, o.name, completeOffered(e, o.offered))
	}
	f.BoolVar(&m.Spot, "spot", false, "create a machine that the provider may end at any time")
	f.StringArrayVar(keys, "ssh-key", nil, "`FILE` with an SSH public key that may log in to the machine in an emergency; repeatable")
	completes(c, "ssh-key", func(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
		return []cobra.Completion{"pub"}, cobra.ShellCompDirectiveFilterFileExt
	})
}

// maxKeyFile bounds a file of public keys in bytes.
const maxKeyFile = 64 << 10

// readPublicKeys reads the SSH public keys of files, one on each line. Its errors contain nothing
// of a file, which may be a private key.
func readPublicKeys(command string, paths []string) (keys []string, err error) {
	for _, path := range paths {
		found, err := publicKeysIn(path)
		if err != nil {
			return nil, usagef(command, "--ssh-key %s: %s", path, err)
		}
		keys = append(keys, found...)
	}
	return keys, nil
}

func publicKeysIn(path string) ([]string, error) {
	f, err := os.Open(path)
	if err != nil {
		if named, ok := errors.AsType[*fs.PathError](err); ok {
			err = named.Err
		}
		return nil, err
	}
	defer f.Close() //nolint:errcheck // it was only read
	content, err := io.ReadAll(io.LimitReader(f, maxKeyFile+1))
	switch {
	case err != nil:
		return nil, errors.New("it cannot be read")
	case len(content) > maxKeyFile:
		return nil, errors.New("it is larger than 64 KiB")
	}
	return publicKeys(content)
}

// publicKeys returns the SSH public keys in a file's content.
func publicKeys(content []byte) (keys []string, err error) {
	if bytes.Contains(content, []byte("PRIVATE KEY")) || bytes.HasPrefix(content, []byte("PuTTY-User-Key-File")) {
		return nil, errors.New("it contains a private key; name the file of the public key, for example id_ed25519.pub")
	}
	for line := range strings.Lines(string(content)) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if !isPublicKey(line) {
			return nil, errors.New("it contains a line that is not an SSH public key; a key is a line such as ssh-ed25519 AAAA… NAME")
		}
		keys = append(keys, line)
	}
	if len(keys) == 0 {
		return nil, errors.New("it contains no SSH public key")
	}
	return keys, nil
}

// isPublicKey reports whether a line is an SSH public key without options: its type, and in
// base64 a key that begins with the same type.
func isPublicKey(line string) bool {
	words := strings.Fields(line)
	if len(words) < 2 {
		return false
	}
	key, err := base64.StdEncoding.DecodeString(words[1])
	kind := binary.BigEndian.AppendUint32(nil, uint32(len(words[0])))
	return err == nil && bytes.HasPrefix(key, append(kind, words[0]...))
}
