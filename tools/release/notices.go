package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// noticesFile is the file with the licenses of the modules that the programs contain.
const noticesFile = "THIRD_PARTY_LICENSES"

// noticesIn is the path of noticesFile in a release's folder of generated files. Archives, packages, images and
// the node agent's install package contain it.
func noticesIn(stage string) string { return filepath.Join(stage, noticesFile) }

// buildNotices writes the licenses and the notices of all modules in the programs of all platforms.
func (r *release) buildNotices(ctx context.Context) error {
	known, err := readLicenses(ctx, r.source)
	if err != nil {
		return err
	}
	modules := map[string][]string{} // with each text
	for _, p := range r.platforms {
		programs, err := filepath.Glob(filepath.Join(r.bin(p), "*"))
		if err != nil {
			return err
		}
		for _, program := range programs {
			if err := known.collect(program, modules); err != nil {
				return fmt.Errorf("licenses of %s: %w", program, err)
			}
		}
	}
	if err := os.MkdirAll(r.stage(), 0o755); err != nil {
		return err
	}
	return os.WriteFile(noticesIn(r.stage()), []byte(noticesOf(modules)), 0o600)
}

// collect adds the modules in a program to those with each text.
func (l *licenses) collect(program string, modules map[string][]string) error {
	_, linked, err := linkedModules(program)
	if err != nil {
		return err
	}
	for _, m := range linked {
		texts, err := l.texts(m.Path, m.Version)
		if err != nil {
			return err
		}
		name := m.Path + " " + m.Version
		for _, text := range texts {
			if !slices.Contains(modules[text], name) {
				modules[text] = append(modules[text], name)
			}
		}
	}
	return nil
}

// noticesOf is the content of noticesFile. Modules with the same text share it.
func noticesOf(modules map[string][]string) string {
	var sections []string
	for text, names := range modules {
		slices.Sort(names)
		sections = append(sections, strings.Join(names, "\n")+"\n\n"+text+"\n")
	}
	slices.Sort(sections)
	line := strings.Repeat("=", 80) + "\n"
	return "The programs of gpuaas contain these Go modules. Their licenses and notices follow. The path of a module is the place of its\nsource; std is the standard library of Go.\n\n" +
		line + strings.Join(sections, "\n"+line)
}
