package cli

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/user"
	"strings"
	"time"

	"golang.org/x/term"

	"github.com/gpuaas/gpuaas/api/client/adminclient"
	"github.com/gpuaas/gpuaas/internal/temporal"
	"github.com/gpuaas/gpuaas/schema"
)

// env is a command's access to the world. Commands read every environment variable,
// clock and stream through it, so that tests control each of them.
type env struct {
	*console
	settings
	platform Platform
	// actor is user@host, which --direct asserts to the audit trail.
	actor string
	// dir is the directory of files without a path.
	dir string
	// completionLimit bounds how long a shell waits for completions.
	completionLimit time.Duration

	// transport sends the requests to the admin API, unless the context has a CA.
	transport http.RoundTripper

	direct Lifecycle           // dialed at first use
	admin  *adminclient.Client // made at first use
}

// settings are the sources of a command's configuration.
type settings struct {
	getenv func(string) string
	flags  globalFlags
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
	// commands, if not nil, adds --direct to the commands in the output.
	commands *strings.Replacer
	// correlationID identifies every request of this command line.
	correlationID string
}

// terminal reports which standard streams are terminals.
type terminal struct {
	in, out, err bool
	// width and outWidth return the columns of stderr and stdout; 0 when unknown.
	width, outWidth func() int
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
	terminalOf := func(stream any) (int, bool) {
		f, ok := stream.(*os.File)
		return int(f.Fd()), ok && term.IsTerminal(int(f.Fd()))
	}
	c := &console{
		stdin: s.In, stdout: s.Out, stderr: s.Err, correlationID: schema.NewID(),
		clock: clock{now: time.Now, after: time.After, spin: func() (<-chan time.Time, func()) {
			t := time.NewTicker(spinEvery)
			return t.C, t.Stop
		}},
	}
	_, c.tty.in = terminalOf(s.In)
	widthOf := func(fd int) func() int {
		return func() int {
			w, _, _ := term.GetSize(fd) // 0 when unknown
			return w
		}
	}
	fd, isTerminal := terminalOf(s.Out)
	c.tty.out, c.tty.outWidth = isTerminal, widthOf(fd)
	fd, isTerminal = terminalOf(s.Err)
	c.tty.err, c.tty.width = isTerminal, widthOf(fd)
	name, host := "unknown", "unknown"
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	if h, err := os.Hostname(); err == nil {
		host = h
	}
	return &env{console: c, settings: settings{getenv: os.Getenv}, platform: p, actor: name + "@" + host, dir: ".", completionLimit: time.Second,
		transport: http.DefaultTransport}
}

func (e *env) close() {
	if e.direct != nil {
		e.direct.Close()
	}
}

// lifecycle returns the connection to Temporal.
func (e *env) lifecycle() (Lifecycle, error) {
	if e.direct != nil {
		return e.direct, nil
	}
	o := e.temporalConfig()
	// The token must never be sent to Temporal. One that cannot be read is not an error here.
	if token, err := e.token(); err == nil && token != "" {
		o.Secrets = []schema.Secret{schema.NewSecret(token)}
	}
	c, err := e.platform.Dial(o)
	if err == nil {
		e.direct = c
	}
	return c, err
}

// temporalConfig selects the Temporal to connect to. Empty fields are read from
// Temporal's own configuration (TEMPORAL_ADDRESS, TEMPORAL_NAMESPACE, profiles).
func (s *settings) temporalConfig() temporal.Config {
	return temporal.Config{Address: s.flags.address, Namespace: s.flags.namespace, WebUI: s.getenv("GPUAAS_WEB_UI_URL")}
}

// clearScreen clears the terminal before a refresh of a watched list.
func (e *console) clearScreen(watch bool) {
	if watch && e.tty.out {
		fmt.Fprint(e.stdout, "\x1b[H\x1b[2J")
	}
}

// confirm asks the operator whether to continue. Without a terminal it refuses unless
// yes is set; command is the one whose help explains --yes.
func (e *console) confirm(ctx context.Context, command, what string, yes bool) error {
	if yes {
		return nil
	}
	if !e.tty.in || !e.tty.err {
		return usagef(command, "%s. There is no terminal for the confirmation: use --yes to continue", what)
	}
	fmt.Fprintf(e.stderr, "%s. Continue? [y/N] ", clean(what))
	answer := make(chan string, 1)
	go func() { // ends with the process on an interrupt: a read of a terminal cannot be canceled
		line, _ := bufio.NewReader(e.stdin).ReadString('\n')
		answer <- strings.ToLower(strings.TrimSpace(line))
	}()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case a := <-answer:
		if a == "y" || a == "yes" {
			return nil
		}
		return &exitError{schema.ExitFailed, []string{"nothing was changed"}}
	}
}
