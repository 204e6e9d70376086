package main

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"

	"time"
)

// entry is a file of an archive.
type entry struct {
	name, source string
	mode         int64
}

// buildArchives builds an archive for each platform, and the node agent's install
// package for all Linux platforms.
func (r *release) buildArchives(ctx context.Context) error {
	for _, p := range r.platforms {
		name := fmt.Sprintf("gpuaas_%s_%s_%s", r.version.Number, p.os, p.arch)
		entries, err := r.archiveEntries(p)
		if err != nil {
			return err
		}
		for i := range entries {
			entries[i].name = path.Join(name, entries[i].name)
		}
		fmt.Fprintln(r.log, "packing", name+".tar.gz")
		if err := writeArchive(filepath.Join(r.out, name+".tar.gz"), entries, r.version.Time); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return r.installPackage(ctx, filepath.Join(r.out, "gpuaas-node-agent_"+r.version.Number+"_linux.tar.gz"))
}

// archiveEntries lists the files of a platform's archive.
func (r *release) archiveEntries(p platform) (entries []entry, err error) {
	for _, name := range programsOf(p) {
		entries = append(entries, entry{name, filepath.Join(r.bin(p), name), 0o755})
	}
	entries = append(entries, entry{"LICENSE", filepath.Join(r.source, "LICENSE"), 0o644})
	for _, folder := range []string{"completions", "man"} {
		files, err := os.ReadDir(filepath.Join(r.stage(), folder))
		if err != nil {
			return nil, fmt.Errorf("run the stage manual first: %w", err)
		}
		for _, f := range files {
			entries = append(entries, entry{path.Join(folder, f.Name()), filepath.Join(r.stage(), folder, f.Name()), 0o644})
		}
	}
	return entries, nil
}

// writeArchive writes a tar.gz without owners, in which all files have the same time.
func writeArchive(out string, entries []entry, at time.Time) (err error) {
	file, err := os.Create(out)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	zip := gzip.NewWriter(file)
	archive := tar.NewWriter(zip)
	for _, e := range entries {
		if err := addEntry(archive, e, at); err != nil {
			return err
		}
	}
	return errors.Join(archive.Close(), zip.Close())
}

func addEntry(archive *tar.Writer, e entry, at time.Time) error {
	file, err := os.Open(e.source)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }() // it is open for reading only
	info, err := file.Stat()
	if err != nil {
		return err
	}
	h := &tar.Header{Name: e.name, Mode: e.mode, Size: info.Size(), ModTime: at, Typeflag: tar.TypeReg, Format: tar.FormatPAX}
	if err := archive.WriteHeader(h); err != nil {
		return err
	}
	_, err = io.Copy(archive, file)
	return err
}
