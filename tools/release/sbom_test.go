package main

import (
	"io"
	"os"
	"path/filepath"
	"testing"

	cdx "github.com/CycloneDX/cyclonedx-go"
	"github.com/stretchr/testify/require"
)

// TestSBOM: the document names the artifact, the program and the modules linked into it.
func TestSBOM(t *testing.T) {
	t.Parallel()
	r := newTestRelease(t)
	self, err := os.Executable()
	require.NoError(t, err)
	program := filepath.Join(r.bin(r.platforms[0]), "gpuaas-api")
	require.NoError(t, os.Remove(program))
	require.NoError(t, os.Symlink(self, program))
	artifact := "gpuaas-api_1.2.3_amd64.deb"
	write(t, filepath.Join(r.out, artifact), "package")
	r.built(t, (*release).buildSBOMs)
	file, err := os.Open(filepath.Join(r.out, artifact+sbomSuffix))
	require.NoError(t, err)
	defer file.Close() //nolint:errcheck // it is open for reading only
	var bom cdx.BOM
	require.NoError(t, cdx.NewBOMDecoder(io.Reader(file), cdx.BOMFileFormatJSON).Decode(&bom))
	sum, _, err := digest(filepath.Join(r.out, artifact))
	require.NoError(t, err)
	require.Equal(t, sum, (*bom.Metadata.Component.Hashes)[0].Value)
	var urls []string
	for _, c := range *bom.Components {
		urls = append(urls, c.PackageURL)
	}
	require.Contains(t, urls, "pkg:golang/github.com/goreleaser/nfpm/v2@v2.45.0")
}

// TestForeignArtifact: a file of another release in the folder is an error, not a part of
// the checksums.
func TestForeignArtifact(t *testing.T) {
	t.Parallel()
	r := newTestRelease(t)
	write(t, filepath.Join(r.out, "notes.txt"), "notes")
	require.ErrorContains(t, r.buildSBOMs(t.Context()), "notes.txt is not an artifact")
}
