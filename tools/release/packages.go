package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/goreleaser/nfpm/v2"
	_ "github.com/goreleaser/nfpm/v2/deb" // the formats of packages
	"github.com/goreleaser/nfpm/v2/files"
	_ "github.com/goreleaser/nfpm/v2/rpm"
)

// packageNames are the packages; deploy/release has the nfpm configuration of each.
func packageNames() []string {
	return []string{"gpuaas", "gpuaas-api", "gpuaas-worker", "gpuaas-node-agent"}
}

// packageFormats are the formats of packages.
func packageFormats() []string { return []string{"deb", "rpm"} }

// buildPackages builds all packages for all Linux platforms.
func (r *release) buildPackages(ctx context.Context) error {
	if err := r.stagePackages(ctx); err != nil {
		return err
	}
	for _, p := range r.platforms {
		if p.os != "linux" {
			continue
		}
		for _, name := range packageNames() {
			for _, format := range packageFormats() {
				if err := r.buildPackage(p, name, format); err != nil {
					return fmt.Errorf("%s of %s for %s: %w", format, name, p, err)
				}
			}
		}
	}
	return nil
}

// buildPackage writes one package into the release's folder.
func (r *release) buildPackage(p platform, name, format string) (err error) {
	info, err := r.packageInfo(p, name, format)
	if err != nil {
		return err
	}
	packager, err := nfpm.Get(format)
	if err != nil {
		return err
	}
	path := filepath.Join(r.out, fileName(packager.ConventionalFileName(info)))
	fmt.Fprintln(r.log, "packing", filepath.Base(path))
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	return packager.Package(info, file)
}

// packageInfo reads the configuration of a package and adds its scripts and times.
func (r *release) packageInfo(p platform, name, format string) (*nfpm.Info, error) {
	file, err := os.Open(filepath.Join(r.source, "deploy", "release", name+".yaml"))
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }() // it is open for reading only
	config, err := nfpm.ParseWithEnvMapping(file, func(variable string) string {
		return map[string]string{"ARCH": p.arch, "VERSION": r.version.Number, "PROGRAMS": r.bin(p), "STAGE": r.stage(), "SOURCE": r.source}[variable]
	})
	if err != nil {
		return nil, err
	}
	config.MTime = r.version.Time
	if scripts := r.scripts(name); scripts != "" {
		config.Scripts = nfpm.Scripts{
			PostInstall: filepath.Join(scripts, "postinstall.sh"),
			PreRemove:   filepath.Join(scripts, "preremove.sh"), PostRemove: filepath.Join(scripts, "postremove.sh"),
		}
	}
	for _, c := range config.Contents {
		if c.FileInfo == nil {
			c.FileInfo = &files.ContentFileInfo{}
		}
		c.FileInfo.MTime = r.version.Time
	}
	info, err := config.Get(format)
	if err != nil {
		return nil, err
	}
	return nfpm.WithDefaults(info), nil
}

// stage is the folder with generated files of packages.
func (r *release) stage() string { return filepath.Join(r.work, "stage") }

// scripts is the folder with the maintainer scripts of a package, "" if it has none.
func (r *release) scripts(name string) string {
	if name == "gpuaas" {
		return ""
	}
	return filepath.Join(r.stage(), "scripts", name)
}

// stagePackages generates the maintainer scripts, the unit of the node agent, and the
// node agent's install package.
func (r *release) stagePackages(ctx context.Context) error {
	for _, name := range packageNames() {
		if r.scripts(name) == "" {
			continue
		}
		values := strings.NewReplacer("@PACKAGE@", name, "@SHORT@", strings.TrimPrefix(name, "gpuaas-"))
		for _, script := range []string{"postinstall.sh", "preremove.sh", "postremove.sh"} {
			if err := render(filepath.Join(r.source, "deploy/release", script), filepath.Join(r.scripts(name), script), values); err != nil {
				return err
			}
		}
	}
	unit := "gpuaas-node-agent.service"
	values := strings.NewReplacer("@INSTALL_ROOT@", "/opt/gpuaas/node-agent", "@ENV_FILE@", "/etc/gpuaas/node-agent.env", "@WRITABLE@", "")
	if err := render(filepath.Join(r.source, "deploy/package", unit), filepath.Join(r.stage(), unit), values); err != nil {
		return err
	}
	return r.installPackage(ctx, filepath.Join(r.stage(), "gpuaas-node-agent.tar.gz"))
}

// installPackage packs the node agents of all Linux platforms and their installer.
func (r *release) installPackage(ctx context.Context, out string) error {
	args := []string{"run", "./deploy/package", "-licenses", noticesIn(r.stage()), "-o", out}
	for _, p := range r.platforms {
		if p.os == "linux" {
			args = append(args, p.arch+"="+filepath.Join(r.bin(p), "gpuaas-node-agent"))
		}
	}
	return r.command(ctx, nil, "go", args...)
}

// render copies a file and replaces its placeholders.
func render(from, to string, values *strings.Replacer) error {
	text, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	return os.WriteFile(to, []byte(values.Replace(string(text))), 0o600)
}
