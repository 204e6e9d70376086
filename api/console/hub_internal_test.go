package console

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
)

// pageOf opens a stream for a page that is up to date.
func pageOf(t *testing.T, h *hub, session byte, watch string) *stream {
	t.Helper()
	s, err := h.open(Session{ID: sessionID{session}, Subject: fmt.Sprint("ops-", session)}, watch, h.revision())
	require.NoError(t, err)
	return s
}

// A page gets one notice for each change of what it shows, and none for another node.
func TestNoticesOfANode(t *testing.T) {
	t.Parallel()
	h := newHub(Config{})
	node, other, all := pageOf(t, h, 1, "node-1"), pageOf(t, h, 1, "node-2"), pageOf(t, h, 1, watchAll)
	before := h.revision()
	require.True(t, h.publish())
	require.Equal(t, before, h.revision(), "nothing changed")

	h.note("node-1")
	h.publish()
	require.NotEqual(t, before, h.revision())
	require.Equal(t, []int{1, 0, 1}, []int{len(node.notices), len(other.notices), len(all.notices)})
	<-node.notices
	h.publish()
	require.Empty(t, node.notices, "the change was announced")

	h.note(watchAll)
	h.publish()
	require.Len(t, other.notices, 1, "anything may have changed")
}

// A logout ends the streams of its session only.
func TestStreamsOfASession(t *testing.T) {
	t.Parallel()
	h := newHub(Config{})
	one, other := pageOf(t, h, 1, watchAll), pageOf(t, h, 2, watchAll)
	h.endSession(sessionID{1})
	<-one.ended
	require.Len(t, h.streams, 1)
	require.True(t, h.streams[other])
}

// The number of streams is limited, and a page that is closed makes room for another.
func TestStreamsAreLimited(t *testing.T) {
	t.Parallel()
	h := newHub(Config{})
	for i := range maxStreams - 1 {
		pageOf(t, h, byte(i/maxSubject), watchAll)
	}
	last := pageOf(t, h, 8, watchAll)
	_, err := h.open(Session{}, watchAll, "")
	require.Equal(t, schema.KindServiceUnavailable, schema.KindOf(err))
	h.close(last)
	pageOf(t, h, 9, watchAll)
}

// One subject cannot use all streams, with however many sessions.
func TestStreamsOfASubjectAreLimited(t *testing.T) {
	t.Parallel()
	h := newHub(Config{})
	var last *stream
	open := func(session byte) (err error) {
		last, err = h.open(Session{ID: sessionID{session}, Subject: "viewer-1"}, watchAll, "")
		return err
	}
	for i := range maxSubject {
		require.NoError(t, open(byte(i)))
	}
	held := last
	err := open(0)
	require.Equal(t, schema.KindServiceUnavailable, schema.KindOf(err))
	require.ErrorContains(t, err, "viewer-1 has 128 open pages")
	pageOf(t, h, 1, watchAll)
	h.close(held)
	require.NoError(t, open(0))
}

// What the admin API sends after it closed a stream is not read.
func TestClosedEvents(t *testing.T) {
	t.Parallel()
	h := newHub(Config{})
	require.NoError(t, h.read(strings.NewReader("event: operation\ndata: {\"node_id\": \"node-1\"}\n\n"+
		"event: closed\ndata: {}\n\nevent: operation\ndata: {\"node_id\": \"node-2\"}\n\n")))
	require.Equal(t, map[string]bool{"node-1": true}, h.changed)
	require.Error(t, h.read(strings.NewReader("event: operation\ndata: {\n\n")))
}
