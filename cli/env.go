package cli

import (
	"context"
	"io"
	"os"
	"os/user"
	"time"

	"golang.org/x/term"

	"github.com/gpuaas/gpuaas/schema"
)

// env is a command's access to the world. Commands read no environment variable,
// clock or stream but through it, so that tests control each of them.
type env struct {
	printer
	getenv   func(string) string
	platform Platform
	// actor is user@host, which --direct asserts to the audit.
	actor string
	// dir is where files without a path of their own are written.
	dir string

	flags    globalFlags
	temporal Lifecycle // dialled at first use
	admin    *adminAPI // made at first use
}

// console is the streams of a command and how it writes to them.
type console struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	tty            terminal
	clock          clock
	// output and noColor are flags; noColor is also set by NO_COLOR.
	output  format
	noColor bool
	// correlationID ties together all that this command line causes.
	correlationID string
}

// printer renders what the control plane knows.
type printer struct{ *console }

// terminal says which standard streams are terminals.
type terminal struct {
	in, out, err bool
	// width returns stderr's columns; 0 when unknown.
	width func() int
}

// clock is the time as commands see it.
type clock struct {
	now func() time.Time
	// after is time.After.
	after func(time.Duration) <-chan time.Time
	// spin starts the ticks that redraw a live view; stop ends them.
	spin func() (ticks <-chan time.Time, stop func())
}

// spinEvery is how often a live view is redrawn.
const spinEvery = 120 * time.Millisecond

func newEnv(p Platform, s Stdio) *env {
	c := &console{
		stdin: s.In, stdout: s.Out, stderr: s.Err, correlationID: schema.NewID(),
		tty: terminal{in: isTerminal(s.In), out: isTerminal(s.Out), err: isTerminal(s.Err), width: func() int { return width(s.Err) }},
		clock: clock{now: time.Now, after: time.After, spin: func() (<-chan time.Time, func()) {
			t := time.NewTicker(spinEvery)
			return t.C, t.Stop
		}},
	}
	return &env{printer: printer{c}, getenv: os.Getenv, platform: p, actor: actor(), dir: "."}
}

func (e *env) close() {
	if e.temporal != nil {
		e.temporal.Close()
	}
}

// lifecycle returns the connection to Temporal.
func (e *env) lifecycle(ctx context.Context) (Lifecycle, error) {
	if e.temporal == nil {
		o := e.dialOptions()
		// A token that cannot be read is the admin API's to complain of.
		if token, err := e.apiToken(); err == nil && token != "" {
			o.Secrets = []schema.Secret{schema.NewSecret(token)}
		}
		c, err := e.platform.Dial(ctx, o)
		if err != nil {
			return nil, err
		}
		e.temporal = c
	}
	return e.temporal, nil
}

func (e *env) dialOptions() DialOptions {
	return DialOptions{Address: e.flags.address, Namespace: e.flags.namespace}
}

// color reports whether text for the stream may carry colors.
func (e *console) color(isTerminal bool) bool {
	return isTerminal && !e.noColor
}

func isTerminal(stream any) bool {
	f, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

func width(stream any) int {
	if f, ok := stream.(*os.File); ok {
		if w, _, err := term.GetSize(int(f.Fd())); err == nil {
			return w
		}
	}
	return 0
}

// actor is the actor that --direct asserts: user@host.
func actor() string {
	name := "unknown"
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return name + "@" + host
}
