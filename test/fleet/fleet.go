package fleet

import (
	"context"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/gpuaas/gpuaas/agent"
)

const (
	// startEvery is the interval between two starts of agents. A fleet that
	// reconnects at once is a different test.
	startEvery = 5 * time.Millisecond
	// progressEvery is the interval of the preparation's progress messages.
	progressEvery = 3 * time.Second
)

// Run prepares the nodes and runs their agents until ctx ends, which is not an error.
// It writes report lines to out, and progress messages to stderr. Errors that an
// operator can resolve are *schema.Error.
func Run(ctx context.Context, c Config, out, stderr io.Writer) error {
	if err := c.Validate(); err != nil {
		return err
	}
	if err := raiseFileLimit(c.Size); err != nil {
		return err
	}
	held, err := lock(c)
	if err != nil {
		return err
	}
	defer held.Close() //nolint:errcheck // closing releases the lock
	misbehaviors, err := assign(c.Size, c.Misbehave, c.Seed)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	f := fleet{conf: c, misbehaviors: misbehaviors, pace: time.NewTicker(startEvery)}
	f.tally.base = resident()
	defer f.pace.Stop()
	defer f.work.Wait()
	defer cancel()
	f.work.Go(func() { every(ctx, c.ReportEvery, func() { fmt.Fprintln(out, f.tally.line(c.Size)) }) })
	if err := f.prepare(ctx, stderr); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	<-ctx.Done()
	fmt.Fprintln(out, f.tally.line(c.Size))
	return nil
}

type fleet struct {
	conf         Config
	misbehaviors []Misbehavior
	tally        tally
	pace         *time.Ticker
	work         sync.WaitGroup
}

// prepare obtains an identity, or a token for one, for every node, starts its agent,
// and reports its progress.
func (f *fleet) prepare(ctx context.Context, stderr io.Writer) error {
	v := &nodeInventory{conf: f.conf, admin: newAdmin(f.conf.AdminURL, f.conf.Token), ready: func(i int, conf agent.Config) {
		select {
		case <-f.pace.C:
		case <-ctx.Done():
			return
		}
		m := newMember(f.conf, conf, f.misbehaviors[i], &f.tally)
		f.work.Go(func() { m.run(ctx) })
	}}
	report := func() {
		prepared, left, why := v.state()
		fmt.Fprintf(stderr, "prepared %d of %d nodes, %d left out; %d have polled\n", prepared, f.conf.Size, left, f.tally.enrolled.Load())
		if why != nil {
			fmt.Fprintf(stderr, "  left out last: %v\n", why)
		}
	}
	reporting, stopReports := context.WithCancel(ctx)
	var reporter sync.WaitGroup
	reporter.Go(func() { every(reporting, progressEvery, report) })
	err := v.run(ctx)
	stopReports()
	reporter.Wait()
	if err == nil {
		report()
		fmt.Fprintln(stderr, "the fleet runs until it is interrupted (Ctrl-C)")
	}
	return err
}

// every calls do at the interval d until ctx ends.
func every(ctx context.Context, d time.Duration, do func()) {
	tick := time.NewTicker(d)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			do()
		}
	}
}
