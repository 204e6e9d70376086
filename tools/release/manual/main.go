// Command manual writes the man pages and the completions of gpuaas into the folders man
// and completions of a folder. SOURCE_DATE_EPOCH is the time of the pages.
package main

import (
	"compress/gzip"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"github.com/gpuaas/gpuaas/cli"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: manual FOLDER VERSION")
		os.Exit(2) //nolint:forbidigo // in a main package
	}
	seconds, err := strconv.ParseInt(os.Getenv("SOURCE_DATE_EPOCH"), 10, 64)
	if err == nil {
		err = write(os.Args[1], os.Args[2], time.Unix(seconds, 0))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "manual:", err)
		os.Exit(1) //nolint:forbidigo // in a main package
	}
}

// write writes the files. The pages name the month of the time in UTC, so that they do not
// depend on the time zone.
func write(folder, version string, at time.Time) error {
	at = at.UTC()
	man, completions := filepath.Join(folder, "man"), filepath.Join(folder, "completions")
	for _, f := range []string{man, completions} {
		if err := errors.Join(os.RemoveAll(f), os.MkdirAll(f, 0o755)); err != nil {
			return err
		}
	}
	root := cli.Commands()
	disableTags(root)
	if err := errors.Join(
		root.GenBashCompletionFileV2(filepath.Join(completions, "gpuaas.bash"), true),
		root.GenZshCompletionFile(filepath.Join(completions, "_gpuaas")),
		root.GenFishCompletionFile(filepath.Join(completions, "gpuaas.fish"), true),
	); err != nil {
		return err
	}
	if err := doc.GenManTree(root, &doc.GenManHeader{Section: "1", Date: &at, Source: "gpuaas " + version, Manual: "gpuaas"}, man); err != nil {
		return err
	}
	return compress(man)
}

// disableTags leaves out the line with the date and the generator.
func disableTags(c *cobra.Command) {
	c.DisableAutoGenTag = true
	for _, sub := range c.Commands() {
		disableTags(sub)
	}
}

// compress replaces the files of a folder by compressed ones without a time.
func compress(folder string) error {
	files, err := os.ReadDir(folder)
	if err != nil {
		return err
	}
	for _, f := range files {
		path := filepath.Join(folder, f.Name())
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		out, err := os.Create(path + ".gz")
		if err != nil {
			return err
		}
		zip := gzip.NewWriter(out)
		_, err = zip.Write(text)
		if err := errors.Join(err, zip.Close(), out.Close(), os.Remove(path)); err != nil {
			return err
		}
	}
	return nil
}
