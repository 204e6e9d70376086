package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"
)

// entry is a file or a folder of an archive.
type entry struct {
	// name is the path; that of a folder ends with a slash.
	name string
	// source is the file with the content, "" for content.
	source  string
	content []byte
	mode    int64
	// owner is the id of the user and of the group.
	owner int
}

// buildArchives builds an archive for each platform, and the node agent's install
// package for all Linux platforms.
func (r *release) buildArchives(ctx context.Context) error {
	for _, p := range r.platforms {
		name := fmt.Sprintf("gpuaas_%s_%s_%s", r.version.tag(), p.os, p.arch)
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
	return r.installPackage(ctx, filepath.Join(r.out, "gpuaas-node-agent_"+r.version.tag()+"_linux.tar.gz"))
}

// buildManual writes the man pages and the completions of the CLI, which archives and
// packages contain. It is a program of its own, because it links the CLI.
func (r *release) buildManual(ctx context.Context) error {
	return r.command(ctx, nil, "go", "-C", "tools/release", "run", "-trimpath", "./manual", r.stage(), r.version.Number)
}

// archiveEntries lists the files of a platform's archive.
func (r *release) archiveEntries(p platform) (entries []entry, err error) {
	for _, name := range programsOf(p) {
		entries = append(entries, entry{name: name, source: filepath.Join(r.bin(p), name), mode: 0o755})
	}
	entries = append(entries, entry{name: "LICENSE", source: filepath.Join(r.source, "LICENSE"), mode: 0o644},
		entry{name: noticesFile, source: noticesIn(r.stage()), mode: 0o644})
	for _, folder := range []string{"completions", "man"} {
		files, err := os.ReadDir(filepath.Join(r.stage(), folder))
		if err != nil {
			return nil, fmt.Errorf("run the stages notices and manual first: %w", err)
		}
		for _, f := range files {
			entries = append(entries, entry{name: path.Join(folder, f.Name()), source: filepath.Join(r.stage(), folder, f.Name()), mode: 0o644})
		}
	}
	return entries, nil
}

// writeArchive writes a tar.gz in which all files have the same time.
func writeArchive(out string, entries []entry, at time.Time) (err error) {
	file, err := os.Create(out)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	zip := gzip.NewWriter(file)
	return errors.Join(writeTar(zip, entries, at), zip.Close())
}

// writeTar writes an archive in which all files have the same time.
func writeTar(w io.Writer, entries []entry, at time.Time) error {
	archive := tar.NewWriter(w)
	for _, e := range entries {
		if err := addEntry(archive, e, at); err != nil {
			return fmt.Errorf("%s: %w", e.name, err)
		}
	}
	return archive.Close()
}

func addEntry(archive *tar.Writer, e entry, at time.Time) error {
	h := &tar.Header{Name: e.name, Mode: e.mode, Uid: e.owner, Gid: e.owner, ModTime: at, Typeflag: tar.TypeReg, Format: tar.FormatPAX}
	var content io.Reader = bytes.NewReader(e.content)
	h.Size = int64(len(e.content))
	switch {
	case strings.HasSuffix(e.name, "/"):
		h.Typeflag = tar.TypeDir
	case e.source != "":
		file, err := os.Open(e.source)
		if err != nil {
			return err
		}
		defer func() { _ = file.Close() }() // it is open for reading only
		info, err := file.Stat()
		if err != nil {
			return err
		}
		content, h.Size = file, info.Size()
	}
	if err := archive.WriteHeader(h); err != nil {
		return err
	}
	_, err := io.Copy(archive, content)
	return err
}
