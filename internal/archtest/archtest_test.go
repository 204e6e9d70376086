package archtest

import (
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// root is the root of the repository, relative to this folder.
const root = "../.."

const module = "github.com/gpuaas/gpuaas"

// pkg is a package in the output of go list.
type pkg struct {
	ImportPath string
	Name       string
	Imports    []string // direct imports of non-test files
	Deps       []string // transitive imports
	// Direct imports of test files.
	TestImports, XTestImports []string
}

// folder returns the package's path inside the module.
func (p pkg) folder() string {
	return strings.TrimPrefix(strings.TrimPrefix(p.ImportPath, module), "/")
}

// packages lists the packages of the main module.
func packages(t *testing.T) []pkg {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-e", "-buildvcs=false", "-json=ImportPath,Name,Imports,Deps,TestImports,XTestImports", "./...")
	cmd.Dir = root
	out, err := cmd.Output()
	require.NoError(t, err, "go list")
	var pkgs []pkg
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p pkg
		err := dec.Decode(&p)
		if err == io.EOF {
			return pkgs
		}
		require.NoError(t, err)
		pkgs = append(pkgs, p)
	}
}

// within reports whether path equals prefix or is below it.
func within(path, prefix string) bool {
	return path == prefix || strings.HasPrefix(path, prefix+"/")
}

// goFiles calls f with the path (from the root) and the text of each Go file of
// the repository, nested modules included, planted and generated files excluded.
func goFiles(t *testing.T, f func(path, text string)) {
	t.Helper()
	files(t, func(path, text string) {
		if strings.HasSuffix(path, ".go") && !generated(text) {
			f(path, text)
		}
	})
}

// generated reports whether a Go file has the generators' mark before its package
// clause.
func generated(text string) bool {
	head, _, _ := strings.Cut("\n"+text, "\npackage ")
	return strings.Contains(head, "\n// Code generated ")
}

// files calls f with the path and the text of each file of the repository.
// Folders of test data, of binaries and those that start with a dot are left
// out, except .github.
func files(t *testing.T, f func(path, text string)) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			name := d.Name()
			hidden := strings.HasPrefix(name, ".") && path != root && name != ".github"
			if hidden || name == "testdata" || path == filepath.Join(root, "bin") || path == filepath.Join(root, "bench") {
				return filepath.SkipDir
			}
			return nil
		}
		if filepath.Ext(path) == "" || !d.Type().IsRegular() {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		f(filepath.ToSlash(rel), string(text))
		return nil
	})
	require.NoError(t, err)
}
