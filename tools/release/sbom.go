package main

import (
	"context"
	"debug/buildinfo"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

// sbomSuffix ends the name of a software bill of materials, after that of its artifact.
const sbomSuffix = ".cdx.json"

// buildSBOMs writes a CycloneDX document for each artifact. It lists the programs in it
// and the Go modules in each with their licenses, as the Go linker recorded them.
func (r *release) buildSBOMs(ctx context.Context) error {
	names, err := artifactsIn(r.out)
	if err != nil {
		return err
	}
	known, err := readLicenses(ctx, r.source)
	if err != nil {
		return err
	}
	for _, name := range names {
		if strings.HasSuffix(name, sbomSuffix) {
			continue
		}
		programs, err := r.programsIn(name)
		if err != nil {
			return err
		}
		bom, err := r.sbom(name, programs, known)
		if err == nil {
			err = writeSBOM(filepath.Join(r.out, name+sbomSuffix), bom)
		}
		if err != nil {
			return fmt.Errorf("bill of materials of %s: %w", name, err)
		}
	}
	fmt.Fprintln(r.log, "wrote the bills of materials")
	return nil
}

// programsIn returns the paths of the programs of an artifact.
func (r *release) programsIn(artifact string) (paths []string, err error) {
	name := filepath.Base(artifact)
	for _, p := range r.platforms {
		var programs []string
		system := p.os == "linux"
		switch {
		case strings.HasPrefix(name, "gpuaas-node-agent_") && strings.HasSuffix(name, "_linux.tar.gz") && system:
			programs = []string{"gpuaas-node-agent"}
		case strings.HasSuffix(name, fmt.Sprintf("_%s_%s.tar.gz", p.os, p.arch)):
			programs = programsOf(p)
		case strings.HasSuffix(name, ".oci.tar") && system:
			for _, i := range images() {
				if strings.HasPrefix(name, "gpuaas-"+i.name+"_") {
					programs = []string{i.program}
				}
			}
		case strings.HasSuffix(name, "_"+p.arch+".deb") && system:
			packaged, _, _ := strings.Cut(name, "_")
			programs = []string{packaged}
		case strings.HasSuffix(name, "."+map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[p.arch]+".rpm") && system:
			packaged, _, _ := strings.Cut(name, "-"+r.version.tag())
			programs = []string{packaged}
		}
		for _, program := range programs {
			paths = append(paths, filepath.Join(r.bin(p), program))
		}
		if slices.Equal(programs, []string{"gpuaas-api"}) && !strings.HasSuffix(name, ".oci.tar") {
			paths = append(paths, r.installedAgents()...)
		}
	}
	if len(paths) == 0 {
		return nil, fmt.Errorf("%s is not an artifact of this version and these platforms; delete the folder and build again", artifact)
	}
	return paths, nil
}

// installedAgents returns the paths of the programs of the node agent's install package.
func (r *release) installedAgents() (paths []string) {
	for _, p := range r.platforms {
		if p.os == "linux" {
			paths = append(paths, filepath.Join(r.bin(p), "gpuaas-node-agent"))
		}
	}
	return paths
}

// writeSBOM writes a document into a file.
func writeSBOM(path string, bom *cdx.BOM) (err error) {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	return cdx.NewBOMEncoder(file, cdx.BOMFileFormatJSON).SetPretty(true).EncodeVersion(bom, cdx.SpecVersion1_6)
}

// sbom is the document of one artifact.
func (r *release) sbom(artifact string, programs []string, known *licenses) (*cdx.BOM, error) {
	sum, _, err := digest(filepath.Join(r.out, artifact))
	if err != nil {
		return nil, err
	}
	bom := cdx.NewBOM()
	bom.Metadata = &cdx.Metadata{
		Timestamp: r.version.Time.Format("2006-01-02T15:04:05Z07:00"),
		Component: &cdx.Component{
			BOMRef: artifact, Type: cdx.ComponentTypeFile, Name: filepath.Base(artifact), Version: r.version.Number,
			Hashes: &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: sum}},
		},
	}
	modules := map[string]cdx.Component{}
	var components []cdx.Component
	var dependencies []cdx.Dependency
	for _, path := range programs {
		program, uses, err := programComponents(path, known)
		if err != nil {
			return nil, err
		}
		var refs []string
		for _, m := range uses {
			refs = append(refs, m.BOMRef)
			if _, ok := modules[m.BOMRef]; !ok {
				modules[m.BOMRef] = m
				components = append(components, m)
			}
		}
		components = append(components, program)
		dependencies = append(dependencies, cdx.Dependency{Ref: program.BOMRef, Dependencies: &refs})
	}
	bom.Components, bom.Dependencies = &components, &dependencies
	return bom, nil
}

// standardLibrary is the module of Go's standard library in a bill of materials.
const standardLibrary = "std"

// programComponents returns a program and its modules.
func programComponents(path string, known *licenses) (program cdx.Component, modules []cdx.Component, err error) {
	name, linked, err := linkedModules(path)
	if err != nil {
		return program, nil, err
	}
	sum, _, err := digest(path)
	if err != nil {
		return program, nil, err
	}
	program = cdx.Component{
		BOMRef: filepath.Base(filepath.Dir(path)) + "/" + filepath.Base(path), Type: cdx.ComponentTypeApplication, Name: name,
		Hashes: &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: sum}}, Licenses: licenseChoices([]string{productLicense}),
	}
	for _, m := range linked {
		ids, err := known.of(m.Path, m.Version)
		if err != nil {
			return program, nil, fmt.Errorf("license of %s: %w", m.Path, err)
		}
		modules = append(modules, moduleComponent(m.Path, m.Version, ids))
	}
	return program, modules, nil
}

// linkedModules returns the package of a program, and the modules that were built into it. The
// standard library is the first.
func linkedModules(program string) (name string, modules []*debug.Module, err error) {
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		return "", nil, err
	}
	modules = []*debug.Module{{Path: standardLibrary, Version: strings.TrimPrefix(info.GoVersion, "go")}}
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		modules = append(modules, m)
	}
	return info.Path, modules, nil
}

func moduleComponent(path, version string, ids []string) cdx.Component {
	url := "pkg:golang/" + path + "@" + strings.ReplaceAll(version, "+", "%2B")
	return cdx.Component{BOMRef: url, Type: cdx.ComponentTypeLibrary, Name: path, Version: version, PackageURL: url, Licenses: licenseChoices(ids)}
}
