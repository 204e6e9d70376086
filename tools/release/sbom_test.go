package main

import (
	"io"
	"os"
	"path/filepath"
	"testing"

	cdx "github.com/CycloneDX/cyclonedx-go"
	"github.com/stretchr/testify/require"
)

// TestSBOM: the document names the artifact, the program, and the modules linked into it with their
// licenses.
func TestSBOM(t *testing.T) {
	t.Parallel()
	r := newTestRelease(t)
	program := filepath.Join(r.bin(r.platforms[0]), "gpuaas-worker")
	require.NoError(t, os.Remove(program))
	buildProgram(t, program)
	artifact := "gpuaas-worker_1.2.3_amd64.deb"
	write(t, filepath.Join(r.out, artifact), "package")
	built(t, r, (*release).buildSBOMs)
	file, err := os.Open(filepath.Join(r.out, artifact+sbomSuffix))
	require.NoError(t, err)
	defer file.Close() //nolint:errcheck // it is open for reading only
	var bom cdx.BOM
	require.NoError(t, cdx.NewBOMDecoder(io.Reader(file), cdx.BOMFileFormatJSON).Decode(&bom))
	sum, _, err := digest(filepath.Join(r.out, artifact))
	require.NoError(t, err)
	require.Equal(t, sum, (*bom.Metadata.Component.Hashes)[0].Value)
	components := map[string]*cdx.Component{}
	for _, c := range *bom.Components {
		components[c.Name] = &c
	}
	require.Contains(t, components, "golang.org/x/mod")
	require.Regexp(t, `^pkg:golang/golang.org/x/mod@v\d`, components["golang.org/x/mod"].PackageURL)
	for _, name := range []string{"golang.org/x/mod", standardLibrary} {
		require.Equal(t, licenseChoices([]string{"BSD-3-Clause"}), components[name].Licenses)
	}
	require.Equal(t, licenseChoices([]string{productLicense}), components["command-line-arguments"].Licenses)
}

// buildProgram builds a program that links a module.
func buildProgram(t *testing.T, path string) {
	t.Helper()
	source := filepath.Join(t.TempDir(), "main.go")
	write(t, source, "package main\n\nimport _ \"golang.org/x/mod/module\"\n\nfunc main() {}\n")
	output(t, "go", "build", "-o", path, source)
}

// TestSBOMOfInstallPackage: the package gpuaas-api contains the install package of the node agent, with the
// agents of all architectures; its image does not.
func TestSBOMOfInstallPackage(t *testing.T) {
	t.Parallel()
	r := newTestRelease(t)
	agents := []string{filepath.Join(r.bin(platform{"linux", "amd64"}), "gpuaas-node-agent"), filepath.Join(r.bin(platform{"linux", "arm64"}), "gpuaas-node-agent")}
	for _, name := range []string{"gpuaas-api_1.2.3_arm64.deb", "gpuaas-api-1.2.3-1.aarch64.rpm"} {
		programs, err := r.programsIn(name)
		require.NoError(t, err)
		require.Equal(t, append([]string{filepath.Join(r.bin(platform{"linux", "arm64"}), "gpuaas-api")}, agents...), programs)
	}
	for name, want := range map[string]int{"images/gpuaas-api_1.2.3.oci.tar": 2, "gpuaas-worker_1.2.3_arm64.deb": 1, "gpuaas-node-agent_1.2.3_linux.tar.gz": 2} {
		programs, err := r.programsIn(name)
		require.NoError(t, err)
		require.Len(t, programs, want, name)
	}
}

// TestForeignArtifact: a file of another release in the folder is an error, not a part of
// the checksums.
func TestForeignArtifact(t *testing.T) {
	t.Parallel()
	r := newTestRelease(t)
	write(t, filepath.Join(r.out, "notes.txt"), "notes")
	require.ErrorContains(t, r.buildSBOMs(t.Context()), "notes.txt is not an artifact")
}
