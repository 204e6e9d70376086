package cli

import (
	"bufio"
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/gpuaas/gpuaas/cli/adminclient"
	"github.com/gpuaas/gpuaas/schema/wire"
)

const (
	// streamTime bounds one event stream; the API ends it after 15 minutes.
	streamTime = 16 * time.Minute
	// reconnectPause is the pause before a stream that ended is opened again.
	reconnectPause = 2 * time.Second
)

// changes returns a channel that gets a value, coalesced, whenever an operation
// of the node changed, or of any node without one. It is closed when the API has
// no event stream or does not answer: the caller then polls.
func (a *adminAPI) changes(ctx context.Context, nodeID string) <-chan struct{} {
	wake := make(chan struct{}, 1)
	go func() {
		defer close(wake)
		for a.stream(ctx, nodeID, wake) && ctx.Err() == nil {
			select {
			case <-ctx.Done():
			case <-time.After(reconnectPause):
			}
		}
	}()
	return wake
}

// stream reads one event stream to its end and reports whether there was one.
func (a *adminAPI) stream(ctx context.Context, nodeID string, wake chan<- struct{}) bool {
	ctx, cancel := context.WithTimeout(ctx, streamTime)
	defer cancel()
	kinds := []string{wire.EventOperation}
	res, err := a.client.StreamEvents(ctx, &adminclient.StreamEventsParams{Node: given(nodeID), Kind: &kinds})
	if err != nil {
		return false
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return false
	}
	for lines := bufio.NewScanner(res.Body); lines.Scan(); {
		// A comment tells that the stream is open: what changed before is read then.
		if text := lines.Text(); strings.HasPrefix(text, "event:") || strings.HasPrefix(text, ": connected") {
			select {
			case wake <- struct{}{}:
			default:
			}
		}
	}
	return true
}

// watcher waits between two readings of a list.
type watcher struct {
	clock   clock
	changes <-chan struct{} // nil without an event stream
}

// wait returns at the next change, after a while at the latest, and reports false
// when ctx ended.
func (w *watcher) wait(ctx context.Context) bool {
	select {
	case <-ctx.Done():
	case _, open := <-w.changes:
		if !open {
			w.changes = nil
			return w.wait(ctx)
		}
	case <-w.clock.after(stuckEvery):
	}
	return ctx.Err() == nil
}
