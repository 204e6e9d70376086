package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	cdx "github.com/CycloneDX/cyclonedx-go"
	"github.com/google/licensecheck"
	"golang.org/x/mod/module"
)

// productLicense is the SPDX identifier of the license of gpuaas.
const productLicense = "Apache-2.0"

// allowedLicenses are the SPDX identifiers of the licenses that a shipped program may
// contain. Another one, for example AGPL, SSPL or BUSL, needs a decision.
func allowedLicenses() []string {
	return []string{"Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "CC0-1.0", "ISC", "MIT", "MPL-2.0"}
}

// unlicensed are the modules without a license file that the programs link anyway,
// each with the reason.
func unlicensed() map[string]string {
	return map[string]string{
		"github.com/nexus-rpc/nexus-proto-annotations@v0.1.0": "go.temporal.io/api (MIT) requires these options of Protocol Buffers",
	}
}

// minCoverage is the part in percent of a license file that must be the text of licenses.
const minCoverage = 75

// licenses finds the licenses of modules.
type licenses struct {
	// cache is Go's cache of modules, root the folder of Go itself.
	cache, root string
	found       map[string][]string // by module and version
}

// readLicenses prepares to read the licenses of the modules that Go downloaded for the
// repository in the folder source.
func readLicenses(ctx context.Context, source string) (*licenses, error) {
	cmd := exec.CommandContext(ctx, "go", "env", "GOMODCACHE", "GOROOT")
	cmd.Dir = source
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go env: %w", err)
	}
	cache, root, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	return &licenses{cache: cache, root: root, found: map[string][]string{}}, nil
}

// of returns the SPDX identifiers of the licenses of a module: those of the license files
// in its root folder. It fails if there is none, unless unlicensed lists the module, and if
// one is not recognized or not allowed.
func (l *licenses) of(path, version string) ([]string, error) {
	key := path + "@" + version
	if ids, ok := l.found[key]; ok || unlicensed()[key] != "" {
		return ids, nil
	}
	folder, err := l.folder(path, version)
	if err != nil {
		return nil, err
	}
	l.found[key], err = licensesIn(folder)
	return l.found[key], err
}

// folder is the folder with the source of a module, or of the standard library.
func (l *licenses) folder(path, version string) (string, error) {
	if path == standardLibrary {
		return l.root, nil
	}
	escaped, err := module.EscapePath(path)
	if err != nil {
		return "", err
	}
	escapedVersion, err := module.EscapeVersion(version)
	return filepath.Join(l.cache, escaped+"@"+escapedVersion), err
}

// texts returns the content of the license files and of the notices of a module, each once, in
// the order of their names.
func (l *licenses) texts(path, version string) (texts []string, err error) {
	folder, err := l.folder(path, version)
	if err != nil {
		return nil, err
	}
	files, err := filesNamed(folder, licenseName+"|"+noticeName)
	if err != nil {
		return nil, err
	}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			return nil, err
		}
		if content := strings.TrimSpace(string(text)); !slices.Contains(texts, content) {
			texts = append(texts, content)
		}
	}
	return texts, nil
}

// The names of files with a license, and with the notices that the Apache license requires to keep.
const (
	licenseName = `^(un)?licen[cs]e|^copying`
	noticeName  = `^notice`
)

// filesNamed returns the paths of the files of a folder whose names match, in any case.
func filesNamed(folder, name string) (paths []string, err error) {
	files, err := os.ReadDir(folder)
	if err != nil {
		return nil, err
	}
	matches := regexp.MustCompile("(?i)" + name).MatchString
	for _, f := range files {
		if !f.IsDir() && matches(f.Name()) {
			paths = append(paths, filepath.Join(folder, f.Name()))
		}
	}
	return paths, nil
}

// licensesIn returns the licenses in a folder.
func licensesIn(folder string) (ids []string, err error) {
	files, err := filesNamed(folder, licenseName)
	if err != nil {
		return nil, err
	}
	for _, f := range files {
		found, err := licensesOfFile(f)
		if err != nil {
			return nil, err
		}
		ids = append(ids, found...)
	}
	if len(ids) == 0 {
		return nil, fmt.Errorf("no license in %s", folder)
	}
	slices.Sort(ids)
	return slices.Compact(ids), nil
}

// licensesOfFile returns the licenses whose text is in a file.
func licensesOfFile(path string) (ids []string, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	scan := licensecheck.Scan(text)
	if scan.Percent < minCoverage {
		return nil, fmt.Errorf("%s has an unknown license: only %.0f percent are the text of a known one", path, scan.Percent)
	}
	for _, m := range scan.Match {
		if m.IsURL {
			continue
		}
		if !slices.Contains(allowedLicenses(), m.ID) {
			return nil, fmt.Errorf("%s has the license %s, which is not allowed", path, m.ID)
		}
		ids = append(ids, m.ID)
	}
	return ids, nil
}

// licenseChoices is the form of licenses in a bill of materials, which lists none if there is none.
func licenseChoices(ids []string) *cdx.Licenses {
	if len(ids) == 0 {
		return nil
	}
	var all cdx.Licenses
	for _, id := range ids {
		all = append(all, cdx.LicenseChoice{License: &cdx.License{ID: id}})
	}
	return &all
}
