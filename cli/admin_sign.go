package cli

import (
	"bytes"
	"context"
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// signOptions are the flags of admin sign-agent.
type signOptions struct {
	version, arch, key, dir string
	force                   bool
}

// signedAgent is its output.
type signedAgent struct {
	trust.Release
	// Arch is the architecture (GOARCH) of the nodes that the release is for.
	Arch string `json:"arch"`
	// PublicKey is the entry of GPUAAS_RELEASE_PUBKEYS that verifies the release.
	PublicKey string `json:"public_key"`
}

func newAdminSignAgent(e *env) *cobra.Command {
	var o signOptions
	c := e.command("sign-agent BINARY", "Sign a release of the agent",
		`Signs the binary gpuaas-node-agent as a release, and writes two files: VERSION.json, the
signed document, and the binary under its SHA-256. The document of a binary for arm64 is
VERSION@arm64.json: a version for nodes of both architectures has two documents. Copy the
files into the folder GPUAAS_AGENT_RELEASES of each gpuaas-api, the binary first. gpuaas node
upgrade-agent then offers the release.

The key is an Ed25519 key in PKCS #8 PEM form. Keep it away from the control plane: nodes
run only what it signed. The command prints its public key, for GPUAAS_RELEASE_PUBKEYS.
BINARY must report the version that it is signed as. A version names one binary of an
architecture: another one in FOLDER is replaced only with --force.`,
		"  openssl genpkey -algorithm ed25519 -out release.key\n  gpuaas admin sign-agent bin/gpuaas-node-agent --version v1.4.0 --key release.key --to releases",
		func(_ context.Context, binary string) error { return runSignAgent(e, binary, o) })
	c.Flags().StringVar(&o.version, "version", "", "`VERSION` that the binary reports (required)")
	c.Flags().StringVar(&o.arch, "arch", "", "`ARCH` of the nodes, amd64 or arm64 (default: that of the binary)")
	c.Flags().StringVar(&o.key, "key", "", "`FILE` with the private key (required)")
	c.Flags().StringVar(&o.dir, "to", ".", "`FOLDER` that receives the files")
	c.Flags().BoolVar(&o.force, "force", false, "replace a release of the same version that is another binary")
	return c
}

func runSignAgent(e *env, binary string, o signOptions) error {
	if !trust.ValidVersion(o.version) || o.key == "" {
		return usagef("gpuaas admin sign-agent", "--version and --key are required")
	}
	key, err := trust.ReadReleaseKey(o.key)
	if err != nil {
		return err
	}
	data, err := os.ReadFile(binary)
	if err != nil {
		return fmt.Errorf("reading the binary: %w", err)
	}
	arch, err := architectureOf(data, o.arch)
	if err != nil {
		return err
	}
	r := trust.Release{V: 1, Version: o.version, Size: int64(len(data)), SHA256: schema.SHA256Hex(data)}
	document, err := trust.SignRelease(r, key)
	if err != nil {
		return err
	}
	path := filepath.Join(o.dir, trust.ReleaseFile(r.Version, arch))
	if err := checkReplaced(path, r, o.force); err != nil {
		return err
	}
	// The document last: a release is complete as soon as it can be found.
	if err := writeWhole(filepath.Join(o.dir, r.SHA256), data); err != nil {
		return err
	}
	if err := writeWhole(path, append(document, '\n')); err != nil {
		return err
	}
	out := signedAgent{r, arch, trust.ReleasePublicKey(key)}
	return e.print(out, func(w io.Writer) {
		fields(w, "Version:", r.Version, "Architecture:", arch, "SHA-256:", r.SHA256, "Public key:", out.PublicKey)
	}, r.SHA256)
}

// architectureOf returns the architecture (GOARCH) that a program is for, which must be want unless
// that is empty. A file that is no Linux program is for want.
func architectureOf(program []byte, want string) (string, error) {
	built := want
	if f, err := elf.NewFile(bytes.NewReader(program)); err == nil {
		built = map[elf.Machine]string{elf.EM_X86_64: trust.ArchAMD64, elf.EM_AARCH64: trust.ArchARM64}[f.Machine]
	}
	switch {
	case built != trust.ArchAMD64 && built != trust.ArchARM64:
		return "", usagef("gpuaas admin sign-agent", "BINARY is no Linux program for amd64 or arm64; for another file, give --arch")
	case want != "" && want != built:
		return "", usagef("gpuaas admin sign-agent", "BINARY is for %s, not for %s", built, want)
	}
	return built, nil
}

// checkReplaced refuses to replace the document of another binary. Nodes that run the version
// would not load the new one, and nothing would show the difference.
func checkReplaced(path string, r trust.Release, force bool) error {
	document, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) || force {
		return nil
	}
	if err != nil {
		return err
	}
	var before trust.Release
	body, err := trust.EnvelopeBody(document)
	if err == nil && json.Unmarshal(body, &before) == nil && before == r {
		return nil
	}
	return schema.NewError(schema.KindAlreadyExists, "%s is that of another binary of version %s", path, r.Version).
		WithNext("sign the binary as a new version, or replace the release: --force")
}

// writeWhole replaces a file that others read, in one step.
func writeWhole(path string, data []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".new-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) //nolint:errcheck // fails after the rename
	_, err = f.Write(data)
	if err = errors.Join(err, f.Chmod(0o644), f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}
