package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/gpuaas/gpuaas/schema/trust"
)

// release is one build of the artifacts.
type release struct {
	source, out, work string // absolute folders
	key               string
	platforms         []platform
	version           version
	log               io.Writer
}

// platform is an operating system and an architecture, as Go names them.
type platform struct{ os, arch string }

func (p platform) String() string { return p.os + "/" + p.arch }

// version identifies the commit of a release.
type version struct {
	// Described is the output of git describe, which the programs report.
	Described string
	// Number is the version of artifacts, which sorts as Debian and RPM sort versions.
	Number string
	Commit string
	// Time is the commit's time, the only one in the artifacts.
	Time time.Time
}

// open reads the version and creates the folders.
func open(ctx context.Context, o options, log io.Writer) (*release, error) {
	r := &release{log: log}
	for _, p := range []struct {
		to   *string
		from string
	}{{&r.source, o.source}, {&r.out, o.out}, {&r.work, o.work}} {
		path, err := filepath.Abs(p.from)
		if err != nil {
			return nil, err
		}
		*p.to = path
	}
	for _, name := range strings.Split(o.platforms, ",") {
		system, arch, ok := strings.Cut(name, "/")
		if !ok || !slices.Contains([]string{"linux", "darwin"}, system) || !slices.Contains([]string{"amd64", "arm64"}, arch) {
			return nil, fmt.Errorf("platform %q is not linux or darwin with amd64 or arm64", name)
		}
		r.platforms = append(r.platforms, platform{system, arch})
	}
	if !slices.ContainsFunc(r.platforms, func(p platform) bool { return p.os == "linux" }) {
		return nil, fmt.Errorf("no platform of %q is linux, which images and packages need", o.platforms)
	}
	if o.key != "" {
		// The build takes minutes, so a bad key must fail before it.
		if r.key = o.key; !filepath.IsAbs(r.key) {
			r.key = filepath.Join(r.source, r.key)
		}
		if _, err := trust.ReadReleaseKey(r.key); err != nil {
			return nil, err
		}
	}
	var err error
	if r.version, err = readVersion(ctx, r.source); err != nil {
		return nil, err
	}
	for _, folder := range []string{r.out, r.work} {
		if err := os.MkdirAll(folder, 0o755); err != nil {
			return nil, err
		}
	}
	fmt.Fprintf(log, "version %s, commit %s of %s\n", r.version.Number, r.version.Commit, r.version.Time.Format(time.RFC3339))
	if strings.Contains(r.version.Described, "dirty") {
		fmt.Fprintln(log, "warning: the working tree has changes, so another clone of this commit gives other artifacts")
	}
	return r, nil
}

func readVersion(ctx context.Context, source string) (v version, err error) {
	git := func(args ...string) string {
		cmd := exec.CommandContext(ctx, "git", append([]string{"-C", source}, args...)...)
		cmd.Stderr = os.Stderr
		out, failed := cmd.Output()
		if failed != nil && err == nil {
			err = fmt.Errorf("git %s: %w", args[0], failed)
		}
		return strings.TrimSpace(string(out))
	}
	// The default length of a commit depends on the number of objects in the clone.
	v.Described = git("describe", "--tags", "--always", "--abbrev=12")
	// Go also compiles files that Git does not track, which describe --dirty ignores.
	if git("status", "--porcelain") != "" {
		v.Described += "-dirty"
	}
	v.Commit = git("rev-parse", "HEAD")
	seconds := git("log", "-1", "--format=%ct")
	if err != nil {
		return v, err
	}
	unix, err := strconv.ParseInt(seconds, 10, 64)
	if err != nil {
		return v, fmt.Errorf("time of the commit: %w", err)
	}
	v.Time = time.Unix(unix, 0).UTC()
	v.Number = number(v.Described, v.Time)
	return v, nil
}

// number turns the output of git describe into a version that sorts correctly: v1.2.3 is
// 1.2.3, v1.2.3-rc.1 is 1.2.3~rc.1, four commits later is 1.2.3+4.gCOMMIT, and a commit
// without a tag is 0.0.0~git.TIME.COMMIT.
func number(described string, at time.Time) string {
	described, dirty := strings.CutSuffix(described, "-dirty")
	suffix := ""
	if dirty {
		suffix = ".dirty"
	}
	tag := regexp.MustCompile(`^v(\d+\.\d+\.\d+)(?:-([0-9A-Za-z.]*[A-Za-z][0-9A-Za-z.]*))??(?:-(\d+)-(g[0-9a-f]+))?$`).FindStringSubmatch(described)
	if tag == nil {
		return "0.0.0~git." + at.Format("20060102150405") + "." + described + suffix
	}
	n := tag[1]
	if tag[2] != "" {
		n += "~" + tag[2]
	}
	switch {
	case tag[3] != "":
		n += "+" + tag[3] + "." + tag[4] + suffix
	case dirty:
		n += "+dirty"
	}
	return n
}

// tag is the version as a tag of an image and in the name of a file. It has no "~", which
// GitHub replaces in the names of a release's files, and no "+".
func (v version) tag() string { return fileName(v.Number) }

// fileName returns a name that GitHub does not change.
func fileName(name string) string { return strings.NewReplacer("~", "-", "+", "-").Replace(name) }

// artifactsIn lists the files of the release in a folder, without checksums and signatures.
func artifactsIn(folder string) (names []string, err error) {
	err = filepath.WalkDir(folder, func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		name, err := filepath.Rel(folder, path)
		if err == nil && !strings.HasPrefix(name, checksumsFile) {
			names = append(names, filepath.ToSlash(name))
		}
		return err
	})
	return names, err
}

// table prints the artifacts with their sizes and digests.
func (r *release) table() error {
	names, err := artifactsIn(r.out)
	if err != nil {
		return err
	}
	w := tabwriter.NewWriter(r.log, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "ARTIFACT\tMIB\tSHA-256")
	for _, name := range names {
		sum, size, err := digest(filepath.Join(r.out, name))
		if err != nil {
			return err
		}
		fmt.Fprintf(w, "%s\t%.1f\t%s\n", name, float64(size)/(1<<20), sum)
	}
	return w.Flush()
}
