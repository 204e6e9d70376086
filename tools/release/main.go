// Command release builds the artifacts of a release: archives, packages for Debian and
// for RPM, images, software bills of materials, and checksums with a signature. The same
// commit and the same Go version give the same bytes. docs/release.md describes it.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1) //nolint:forbidigo // in a main package
	}
}

// options are the flags of the command.
type options struct {
	source, out, work, key, platforms string
}

// run builds the stages that the arguments name, or all of them.
func run(ctx context.Context, args []string, log io.Writer) error {
	var o options
	flags := flag.NewFlagSet("release", flag.ContinueOnError)
	flags.StringVar(&o.source, "source", "../..", "root `folder` of the repository")
	flags.StringVar(&o.out, "o", "../../dist", "`folder` that receives the artifacts")
	flags.StringVar(&o.work, "work", "../../.cache/release", "`folder` for programs and generated files")
	flags.StringVar(&o.key, "key", "", "`file` with the Ed25519 key that signs the checksums, in PKCS #8 PEM form; relative to -source")
	flags.StringVar(&o.platforms, "platforms", "linux/amd64,linux/arm64,darwin/amd64,darwin/arm64", "`list` of platforms")
	flags.Usage = func() {
		fmt.Fprintf(flags.Output(), "Usage: release [flags] [STAGE...]\n\nStages, all by default: %s\n\n", strings.Join(stageNames(), ", "))
		flags.PrintDefaults()
	}
	if err := flags.Parse(args); err != nil {
		return err
	}
	stages, err := chosen(flags.Args())
	if err != nil {
		return err
	}
	r, err := open(ctx, o, log)
	if err != nil {
		return err
	}
	for i, s := range stages {
		fmt.Fprintf(log, "== %s (%d of %d)\n", s.name, i+1, len(stages))
		if err := s.run(r, ctx); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
	}
	return r.table()
}

// stage is a part of a release. Later stages use what earlier ones built.
type stage struct {
	name string
	run  func(*release, context.Context) error
}

func allStages() []stage {
	return []stage{
		{"programs", (*release).buildPrograms},
		{"notices", (*release).buildNotices},
		{"manual", (*release).buildManual},
		{"archives", (*release).buildArchives},
		{"packages", (*release).buildPackages},
		{"images", (*release).buildImages},
		{"sbom", (*release).buildSBOMs},
		{"checksums", (*release).buildChecksums},
	}
}

func stageNames() (names []string) {
	for _, s := range allStages() {
		names = append(names, s.name)
	}
	return names
}

// chosen returns the stages with these names, in the order of a release.
func chosen(names []string) (stages []stage, err error) {
	if len(names) == 0 {
		return allStages(), nil
	}
	want := map[string]bool{}
	for _, n := range names {
		want[n] = true
	}
	for _, s := range allStages() {
		if want[s.name] {
			stages = append(stages, s)
			delete(want, s.name)
		}
	}
	for n := range want {
		return nil, fmt.Errorf("unknown stage %q, want %s", n, strings.Join(stageNames(), ", "))
	}
	return stages, nil
}
