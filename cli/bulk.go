package cli

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/gpuaas/gpuaas/schema/text"
)

// bulkFlags are the flags of a command that works on one node or operation, or on many.
type bulkFlags struct {
	// noun is what the command works on: node or operation.
	noun string
	// selectors make the command work on many. The flags in one and many exclude each other.
	selectors, one, many []string
}

// selected reports whether the command works on many.
func (f bulkFlags) selected(c *cobra.Command) bool {
	return slices.ContainsFunc(f.selectors, c.Flags().Changed)
}

// check rejects arguments and flags that exclude each other. It is the Args of the command.
func (f bulkFlags) check(c *cobra.Command, args []string) error {
	var flags []string
	for _, s := range f.selectors {
		flags = append(flags, "--"+s)
	}
	selectors := text.Or(flags)
	others, why := f.one, "is for one "+f.noun
	if !f.selected(c) {
		if err := exactArgs("NODE")(c, args); err != nil {
			return err
		}
		others, why = f.many, "needs "+selectors
	} else if len(args) > 0 {
		return usagef(c.CommandPath(), "specify NODE, or %s, not both", selectors)
	}
	if i := slices.IndexFunc(others, c.Flags().Changed); i >= 0 {
		return usagef(c.CommandPath(), "--%s %s", others[i], why)
	}
	if n, err := c.Flags().GetInt("max-parallel"); err != nil || n < 1 {
		return usagef(c.CommandPath(), "--max-parallel %d: must be at least 1", n)
	}
	return nil
}

// bulkOutcome is the result of one row of a bulk command.
type bulkOutcome string

const (
	bulkPlanned bulkOutcome = "planned" // --dry-run
	bulkFailed  bulkOutcome = "failed"
)

func (o bulkOutcome) words() string { return strings.ReplaceAll(string(o), "_", " ") }

// bulkRow is one node or operation of a bulk command.
type bulkRow interface {
	// name is the name of the row's node.
	name() string
	outcome() bulkOutcome
	// details follow the outcome in the progress message.
	details() string
}

// bulkRun is one run of a bulk command.
type bulkRun[R bulkRow] struct {
	env     *env
	noun    string      // what a row is: node or operation
	rows    []R         // each is changed by its own goroutine
	chosen  []R         // those of rows to work on
	stopped atomic.Bool // starts no further row

	mu    sync.Mutex // orders the messages
	ended int
}

// work completes the chosen rows, some at a time. An interrupt starts no further one.
func (b *bulkRun[R]) work(ctx context.Context, parallel int, complete func(context.Context, R)) {
	var group errgroup.Group
	group.SetLimit(parallel)
	for _, r := range b.chosen {
		group.Go(func() error {
			if ctx.Err() == nil && !b.stopped.Load() {
				complete(ctx, r)
				b.progress(r, 1, r.outcome().words()+r.details())
			}
			return nil
		})
	}
	group.Wait() //nolint:errcheck // each row has its own error
}

// progress prints a message about a row. ended is 1 if it is the row's last message.
func (b *bulkRun[R]) progress(r R, ended int, message string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ended += ended
	b.env.message("[%d/%d] %s: %s", b.ended, len(b.chosen), r.name(), message)
}

// print prints the rows and returns the number of those with each outcome. object is the
// result for -o json, without that summary.
func (b *bulkRun[R]) print(object map[string]any, l listing[R]) (map[bulkOutcome]int, error) {
	summary, words := map[bulkOutcome]int{}, []string{}
	for _, r := range b.rows {
		summary[r.outcome()]++
	}
	for _, o := range slices.Sorted(maps.Keys(summary)) {
		words = append(words, fmt.Sprintf("%d %s", summary[o], o.words()))
	}
	b.env.message("%s: %s", text.Count(len(b.rows), b.noun), strings.Join(words, ", "))
	object["summary"] = summary
	l.object, l.rows = object, b.rows
	return summary, printList(b.env.console, l)
}
