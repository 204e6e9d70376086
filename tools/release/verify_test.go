package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"flag"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	cdx "github.com/CycloneDX/cyclonedx-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/test/testkit/need"
)

// A release to verify in place of a small one.
var (
	distFolder = flag.String("dist", "", "folder of a release, for TestVerifyCommands and TestSBOMNamesContent")
	publicKey  = flag.String("public-key", "", "file with the public key that signed it; without, a key of the test signs its checksums")
)

// download is a signed release.
type download struct {
	folder, publicKey string
	artifacts         []string
}

// newDownload returns the release of the flag, or a small one with all kinds of artifacts.
func newDownload(t *testing.T) download {
	t.Helper()
	r := newTestRelease(t)
	r.key = newKey(t)
	d := download{folder: r.out, publicKey: *publicKey}
	if *distFolder == "" {
		program := filepath.Join(t.TempDir(), "program")
		buildProgram(t, program)
		for _, p := range r.platforms {
			for _, name := range programsOf(p) {
				require.NoError(t, os.Remove(filepath.Join(r.bin(p), name)))
				require.NoError(t, os.Link(program, filepath.Join(r.bin(p), name)))
			}
		}
		built(t, r, (*release).buildArchives, (*release).buildPackages, (*release).buildImages, (*release).buildSBOMs)
	} else {
		linkAll(t, *distFolder, r.out)
	}
	if d.publicKey == "" {
		require.NoError(t, r.buildChecksums(t.Context()))
		d.publicKey = filepath.Join(filepath.Dir(r.key), "public.pem")
	}
	var err error
	d.artifacts, err = artifactsIn(d.folder)
	require.NoError(t, err)
	require.NotEmpty(t, d.artifacts)
	return d
}

// linkAll makes a folder with the files of another one. The checksums are copied, because a test
// may replace them.
func linkAll(t *testing.T, from, to string) {
	t.Helper()
	names, err := artifactsIn(from)
	require.NoError(t, err)
	for _, name := range names {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(to, name)), 0o755))
		absolute, err := filepath.Abs(filepath.Join(from, name))
		require.NoError(t, err)
		require.NoError(t, os.Symlink(absolute, filepath.Join(to, name)))
	}
	for _, name := range []string{checksumsFile, checksumsFile + ".dsse.json"} {
		if text, err := os.ReadFile(filepath.Join(from, name)); err == nil {
			write(t, filepath.Join(to, name), string(text))
		}
	}
}

// verifyCommands returns a block of commands of docs/release.md.
func verifyCommands(t *testing.T, mark string) string {
	t.Helper()
	page, err := os.ReadFile("../../docs/release.md")
	require.NoError(t, err)
	_, commands, ok := strings.Cut(string(page), "<!-- "+mark+" -->\n```\n")
	require.True(t, ok)
	commands, _, _ = strings.Cut(commands, "```")
	return commands
}

// typed runs commands in a folder.
func typed(t *testing.T, folder, commands string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "sh", "-ec", commands)
	cmd.Dir = folder
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// get makes a folder as in docs/release.md: the checksums, their signature, the key, and one artifact.
func (d download) get(t *testing.T, artifact string) (folder string) {
	t.Helper()
	folder = t.TempDir()
	for from, to := range map[string]string{
		filepath.Join(d.folder, checksumsFile): checksumsFile, filepath.Join(d.folder, checksumsFile+".dsse.json"): checksumsFile + ".dsse.json",
		d.publicKey: "gpuaas-release.pem", filepath.Join(d.folder, artifact): artifact,
	} {
		content, err := os.ReadFile(from)
		require.NoError(t, err)
		write(t, filepath.Join(folder, to), string(content))
	}
	return folder
}

// flip changes one bit in the middle of a file.
func flip(t *testing.T, path string) {
	t.Helper()
	content, err := os.ReadFile(path)
	require.NoError(t, err)
	content[len(content)/2] ^= 1
	require.NoError(t, os.WriteFile(path, content, 0o600))
}

// TestVerifyCommands types the commands of docs/release.md for each artifact of a signed release. Each
// changed file, and another key, is an error.
func TestVerifyCommands(t *testing.T) {
	t.Parallel()
	for _, program := range []string{"jq", "openssl", "sha256sum"} {
		need.Program(t, program, "install it")
	}
	d, commands := newDownload(t), verifyCommands(t, "verify")
	for _, artifact := range d.artifacts {
		folder := d.get(t, artifact)
		out, err := typed(t, folder, commands)
		require.NoError(t, err, out)
		require.Contains(t, out, "Signature Verified Successfully")
		require.Contains(t, out, artifact+": OK")
		flip(t, filepath.Join(folder, artifact))
		out, err = typed(t, folder, commands)
		require.Error(t, err, "%s was changed: %s", artifact, out)
		require.Contains(t, out, artifact+": FAILED")
		require.NoError(t, os.RemoveAll(folder))
	}
	refused := func(d download, change func(folder string)) {
		t.Helper()
		folder := d.get(t, d.artifacts[0])
		change(folder)
		out, err := typed(t, folder, commands)
		require.Error(t, err, out)
		require.NotContains(t, out, ": OK")
	}
	refused(d, func(folder string) { flip(t, filepath.Join(folder, checksumsFile)) })
	refused(d, func(folder string) { changeSignature(t, filepath.Join(folder, checksumsFile+".dsse.json")) })
	other := d
	other.publicKey = filepath.Join(filepath.Dir(newKey(t)), "public.pem")
	refused(other, func(string) {})
}

// changeSignature changes one character of the signature in an envelope.
func changeSignature(t *testing.T, path string) {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	before, after, ok := bytes.Cut(text, []byte(`"sig":"`))
	require.True(t, ok)
	character := byte('A')
	if after[0] == character {
		character = 'B'
	}
	write(t, path, string(before)+`"sig":"`+string(character)+string(after[1:]))
}

// TestSBOMNamesContent: the bill of materials of an artifact names its digest, which the command of
// docs/release.md compares, and the digests of the programs in it, with the licenses of their modules.
func TestSBOMNamesContent(t *testing.T) {
	t.Parallel()
	need.Program(t, "jq", "install it")
	d, commands := newDownload(t), verifyCommands(t, "verify-sbom")
	for _, artifact := range d.artifacts {
		bom, isBOM := strings.CutSuffix(artifact, sbomSuffix)
		if !isBOM {
			assert.Contains(t, d.artifacts, artifact+sbomSuffix)
			continue
		}
		folder := t.TempDir()
		for _, name := range []string{artifact, bom} {
			content, err := os.ReadFile(filepath.Join(d.folder, name))
			require.NoError(t, err)
			write(t, filepath.Join(folder, filepath.Base(name)), string(content))
		}
		out, err := typed(t, folder, commands)
		require.NoError(t, err, out)
		require.Contains(t, out, filepath.Base(bom)+": OK")
		d.checkComponents(t, artifact, bom)
		flip(t, filepath.Join(folder, filepath.Base(bom)))
		out, err = typed(t, folder, commands)
		require.Error(t, err, "%s was changed: %s", bom, out)
		require.NoError(t, os.RemoveAll(folder))
	}
}

// checkComponents compares a bill of materials with the programs in its artifact.
func (d download) checkComponents(t *testing.T, bom, artifact string) {
	t.Helper()
	file, err := os.Open(filepath.Join(d.folder, bom))
	require.NoError(t, err)
	defer file.Close() //nolint:errcheck // it is open for reading only
	var document cdx.BOM
	require.NoError(t, cdx.NewBOMDecoder(file, cdx.BOMFileFormatJSON).Decode(&document))
	sums := map[string]bool{}
	for _, c := range *document.Components {
		if c.Hashes != nil {
			sums[(*c.Hashes)[0].Value] = true
		}
		assert.True(t, c.Licenses != nil || unlicensed()[c.Name+"@"+c.Version] != "", "%s has no license in %s", c.Name, bom)
	}
	if strings.HasSuffix(artifact, ".tar.gz") {
		for name, sum := range programsInArchive(t, filepath.Join(d.folder, artifact)) {
			assert.True(t, sums[sum], "%s of %s is not in %s", name, artifact, bom)
		}
	}
}

// programsInArchive returns the digests of the programs in an archive.
func programsInArchive(t *testing.T, path string) map[string]string {
	t.Helper()
	content, err := os.ReadFile(path)
	require.NoError(t, err)
	zip, err := gzip.NewReader(bytes.NewReader(content))
	require.NoError(t, err)
	archive, programs := tar.NewReader(zip), map[string]string{}
	for {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			require.NotEmpty(t, programs)
			return programs
		}
		require.NoError(t, err)
		if h.Mode&0o111 != 0 && !strings.HasSuffix(h.Name, ".sh") {
			sum := sha256.New()
			_, err := io.Copy(sum, archive)
			require.NoError(t, err)
			programs[h.Name] = hex.EncodeToString(sum.Sum(nil))
		}
	}
}
