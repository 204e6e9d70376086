package store_test

import (
	"context"
	"encoding/json"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

func TestAuditChainsHoldUnderConcurrentWrites(t *testing.T) {
	e := setup(t)
	const nodes, writes = 10, 20
	ids := make([]string, nodes)
	for i := range ids {
		ids[i] = e.inState(lifecycle.NodeActive).ID
	}
	for _, err := range race(nodes*writes, func(i int) error {
		_, err := e.Claim(t.Context(), request(ids[i%nodes], lifecycle.ActionProvision))
		return err
	}) {
		require.NoError(t, err)
	}
	for _, id := range ids {
		events := e.chain(id)
		require.Len(t, events, 1+writes+(writes-1))
		require.True(t, slices.IsSortedFunc(events, func(a, b audit.Event) int { return a.At.Compare(b.At) }))
		page, err := e.AuditStream(t.Context(), id, 5, 7)
		require.NoError(t, err)
		require.Equal(t, events[5:12], page)
		require.NoError(t, audit.VerifyChain(&events[4], page))
	}
	streams, err := e.AuditStreams(t.Context())
	require.NoError(t, err)
	slices.Sort(ids)
	require.Equal(t, ids, streams)
}

func TestAuditShowsTampering(t *testing.T) {
	e := setup(t)
	n := e.inState(lifecycle.NodeActive)
	for range 4 {
		e.claim(n.ID, lifecycle.ActionProvision)
	}
	e.exec("ALTER TABLE audit_events DISABLE TRIGGER USER")
	e.exec("CREATE TABLE untouched AS SELECT * FROM audit_events")
	for _, tamper := range []string{
		"UPDATE audit_events SET actor = 'mallory' WHERE seq = 3",
		"UPDATE audit_events SET via = 'temporal' WHERE seq = 3",
		"UPDATE audit_events SET at = at + interval '1 microsecond' WHERE seq = 3",
		`UPDATE audit_events SET detail = detail || '{"from": "retired"}' WHERE seq = 2`,
		"UPDATE audit_events SET prev_hash = hash WHERE seq = 3",
		"DELETE FROM audit_events WHERE seq = 3",
		"DELETE FROM audit_events WHERE seq = 1",
		"UPDATE audit_events SET seq = seq + 100 WHERE seq = 5",
	} {
		e.exec(tamper)
		events, err := e.AuditStream(t.Context(), n.ID, 0, 100)
		require.NoError(t, err)
		require.Error(t, audit.VerifyChain(nil, events), tamper)
		e.exec("DELETE FROM audit_events")
		e.exec("INSERT INTO audit_events SELECT * FROM untouched")
		e.chain(n.ID)
	}
}

// A row that was changed and given a hash that fits it is found by the row after
// it.
func TestAuditShowsARestampedRow(t *testing.T) {
	e := setup(t)
	n := e.inState(lifecycle.NodeActive)
	for range 4 {
		e.claim(n.ID, lifecycle.ActionProvision)
	}
	events := e.chain(n.ID)
	events[2].Actor = "mallory"
	events[2].Hash = events[2].ComputeHash()
	e.exec("ALTER TABLE audit_events DISABLE TRIGGER USER")
	e.exec("UPDATE audit_events SET actor = 'mallory', hash = $2 WHERE stream = $1 AND seq = 3", n.ID, events[2].Hash)
	stored, err := e.AuditStream(t.Context(), n.ID, 0, 100)
	require.NoError(t, err)
	require.ErrorContains(t, audit.VerifyChain(nil, stored), "row 4 does not continue row 3")
}

func TestAuditIsAppendOnly(t *testing.T) {
	e := setup(t)
	e.register()
	for _, sql := range []string{"UPDATE audit_events SET actor = 'mallory'", "DELETE FROM audit_events",
		"TRUNCATE audit_events", "TRUNCATE audit_heads", "DELETE FROM audit_heads", "DELETE FROM audit_events WHERE false"} {
		_, err := e.raw.Exec(t.Context(), sql)
		var refused *pgconn.PgError
		require.ErrorAs(t, err, &refused, sql)
		require.Contains(t, refused.Message, "append-only")
	}
}

func TestStreamsDoNotWaitForEachOther(t *testing.T) {
	e := setup(t)
	a, b := e.inState(lifecycle.NodeActive), e.inState(lifecycle.NodeActive)
	tx, err := e.raw.Begin(t.Context())
	require.NoError(t, err)
	defer tx.Rollback(t.Context())
	_, err = tx.Exec(t.Context(), "SELECT 1 FROM audit_heads WHERE stream = $1 FOR UPDATE", a.ID)
	require.NoError(t, err)

	_, err = e.Claim(t.Context(), request(b.ID, lifecycle.ActionProvision))
	require.NoError(t, err)
	brief, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	again := request(a.ID, lifecycle.ActionProvision)
	_, err = e.Claim(brief, again)
	requireKind(t, err, schema.KindServiceUnavailable, "")
	require.NoError(t, tx.Rollback(t.Context()))
	c, err := e.Claim(t.Context(), again)
	require.NoError(t, err)
	require.Equal(t, int64(1), c.Fence.OpSeq, "what timed out left all or nothing")
}

// audit_append and ComputeHash agree on every text, at the edges of JSON and of
// length prefixes.
func TestAuditHashesAgree(t *testing.T) {
	e := setup(t)
	r := rand.New(rand.NewPCG(1, 10))
	odd := []rune{':', '1', '"', '\\', '/', '<', '>', '&', '\'', '{', '}', '\b', '\f', '\n', '\r', '\t', 1, 0x1f, 0x7f, 0x80, 0xa0, 'é', 'Z', '0',
		0x2027, 0x2028, 0x2029, 0x202a, 0xd7ff, 0xe000, 0xfeff, 0xfffd, 0xffff, 0x1f600, 0x10ffff}
	text := func() string {
		runes := make([]rune, r.IntN(8))
		for i := range runes {
			runes[i] = odd[r.IntN(len(odd))]
		}
		return string(runes)
	}
	for range 300 {
		detail := map[string]string{}
		for range r.IntN(5) {
			detail[text()] = text()
		}
		raw, err := json.Marshal(detail)
		require.NoError(t, err)
		e.exec("SELECT audit_append('odd', $1, $2, $3, $4, 'succeeded', $5, $6, $7, $8)", text(), text(), text(), text(), text(), text(), text(), raw)
	}
	e.exec("SELECT audit_append('odd', '', '', '', '', 'succeeded', '', '', '', '{}')")
	require.Len(t, e.chain("odd"), 301)
}

func TestAuditKeepsOddTextVerifiable(t *testing.T) {
	e := setup(t)
	n := e.inState(lifecycle.NodeRegistered)
	r := request(n.ID, lifecycle.ActionDrain) // refused: the reason goes into the detail
	r.Actor, r.CorrelationID = "a\x00b\xff", "<&>\u2028"
	r.Reason = strings.Repeat("ü", 5000) + "\x00"
	_, err := e.Claim(t.Context(), r)
	requireKind(t, err, schema.KindInvalidRequest, "invalid_state")
	last := e.chain(n.ID)[1]
	require.Equal(t, "a\uFFFDb\uFFFD", last.Actor)
	require.Less(t, len(last.Detail["requested_reason"]), 2010)
}
