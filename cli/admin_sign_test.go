package cli

import (
	"crypto/ed25519"
	"crypto/x509"
	"debug/elf"
	"encoding/binary"
	"encoding/json"
	"encoding/pem"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// newReleaseKey returns a file with a new release key.
func newReleaseKey(t *testing.T) string {
	t.Helper()
	_, private, err := ed25519.GenerateKey(nil)
	require.NoError(t, err)
	der, err := x509.MarshalPKCS8PrivateKey(private)
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "release.key")
	require.NoError(t, os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), 0o600))
	return file
}

func TestSignAgent(t *testing.T) {
	t.Parallel()
	dir, key := t.TempDir(), newReleaseKey(t)
	file := func(name string) string { return filepath.Join(dir, name) }
	for name, text := range map[string]string{"agent": "binary", "bad": "no key"} {
		require.NoError(t, os.WriteFile(file(name), []byte(text), 0o600))
	}
	h := setup(t)
	require.Zero(t, h.run("admin", "sign-agent", file("agent"), "--version", "v2.0.0", "--arch", "amd64", "--key", key, "--to", dir, "-o", "json"), h.err.String())
	var out signedAgent
	require.NoError(t, json.Unmarshal(h.out.Bytes(), &out))
	keys, err := trust.ParseReleaseKeys(out.PublicKey)
	require.NoError(t, err)
	document, err := os.ReadFile(file("v2.0.0.json"))
	require.NoError(t, err)
	r, err := trust.OpenRelease(document, keys)
	require.NoError(t, err)
	require.Equal(t, trust.Release{V: 1, Version: "v2.0.0", Size: 6, SHA256: schema.SHA256Hex([]byte("binary"))}, r)
	binary, err := os.ReadFile(file(r.SHA256))
	require.NoError(t, err)
	require.Equal(t, "binary", string(binary))
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, left, 4, "no temporary file is left")

	sign := []string{"admin", "sign-agent", file("agent"), "--version", "v2.0.0", "--arch", "amd64", "--key", key, "--to", dir}
	require.Zero(t, setup(t).run(sign...), "the same binary may be signed again")
	require.NoError(t, os.WriteFile(file("agent"), []byte("another"), 0o600))
	h = setup(t)
	require.Equal(t, schema.ExitRefused, h.run(sign...))
	require.Contains(t, h.err.String(), "v2.0.0.json is that of another binary of version v2.0.0")
	require.Contains(t, h.err.String(), "--force")
	kept, err := os.ReadFile(file("v2.0.0.json"))
	require.NoError(t, err)
	kept, err = trust.EnvelopeBody(kept)
	require.NoError(t, err)
	require.Contains(t, string(kept), r.SHA256)
	require.Zero(t, setup(t).run(append(sign, "--force")...))
	document, err = os.ReadFile(file("v2.0.0.json"))
	require.NoError(t, err)
	forced, err := trust.OpenRelease(document, keys)
	require.NoError(t, err)
	require.Equal(t, schema.SHA256Hex([]byte("another")), forced.SHA256)

	for _, args := range [][]string{
		{file("agent"), "--key", key}, {file("agent"), "--version", "v2"}, {file("agent"), "--version", "../v2", "--key", key},
	} {
		require.Equal(t, schema.ExitUsage, setup(t).run(append([]string{"admin", "sign-agent"}, args...)...), args)
	}
	h = setup(t)
	require.Equal(t, schema.ExitFailed, h.run("admin", "sign-agent", file("agent"), "--version", "v2", "--arch", "amd64", "--key", file("bad"), "--to", dir))
	require.NotContains(t, h.err.String(), "no key", "the file may hold a key")
}

// program is the header of a Linux program for a machine.
func program(t *testing.T, machine elf.Machine) []byte {
	t.Helper()
	h := elf.Header64{Type: uint16(elf.ET_EXEC), Machine: uint16(machine), Version: uint32(elf.EV_CURRENT), Ehsize: 64}
	copy(h.Ident[:], elf.ELFMAG)
	h.Ident[elf.EI_CLASS], h.Ident[elf.EI_DATA], h.Ident[elf.EI_VERSION] = byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)
	text, err := binary.Append(nil, binary.LittleEndian, h)
	require.NoError(t, err)
	return text
}

// A version has a document for each architecture, which is that of the binary.
func TestSignArchitectures(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		binary    []byte
		arch      string
		want, err string
	}{
		"amd64":        {binary: program(t, elf.EM_X86_64), want: "v2.json"},
		"arm64":        {binary: program(t, elf.EM_AARCH64), want: "v2@arm64.json"},
		"same":         {binary: program(t, elf.EM_AARCH64), arch: "arm64", want: "v2@arm64.json"},
		"another":      {binary: program(t, elf.EM_AARCH64), arch: "amd64", err: "BINARY is for arm64, not for amd64"},
		"unsupported":  {binary: program(t, elf.EM_RISCV), err: "no Linux program for amd64 or arm64"},
		"script":       {binary: []byte("#!/bin/sh\n"), arch: "arm64", want: "v2@arm64.json"},
		"unknown":      {binary: []byte("#!/bin/sh\n"), err: "give --arch"},
		"unknown flag": {binary: []byte("#!/bin/sh\n"), arch: "riscv64", err: "give --arch"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			file := filepath.Join(dir, "agent")
			require.NoError(t, os.WriteFile(file, c.binary, 0o600))
			h := setup(t)
			code := h.run("admin", "sign-agent", file, "--version", "v2", "--arch", c.arch, "--key", newReleaseKey(t), "--to", dir)
			if c.err != "" {
				require.Equal(t, schema.ExitUsage, code)
				require.Contains(t, h.err.String(), c.err)
				return
			}
			require.Zero(t, code, h.err.String())
			require.FileExists(t, filepath.Join(dir, c.want))
		})
	}
}
