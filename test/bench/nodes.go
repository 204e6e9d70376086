package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/api/nodeapi"
	"github.com/gpuaas/gpuaas/internal/store"
	"github.com/gpuaas/gpuaas/internal/vault"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// parallel is the number of nodes created concurrently; Vault limits more.
const parallel = 16

// node is an enrolled node with an open operation, so that it can receive tasks.
type node struct {
	ID          string
	Incarnation int64
	// Cert and Key are PEM; "" for nodes without a real certificate.
	Cert, Key string
	Fence     activities.Fence
}

func (n node) caller() nodeapi.Caller {
	return nodeapi.Caller{NodeID: n.ID, Incarnation: n.Incarnation}
}

// database returns the URL of the stack's database.
func (e *env) database() (string, error) {
	raw, err := os.ReadFile(filepath.Join(e.Dir, "secrets", "database-url"))
	return strings.TrimSpace(string(raw)), err
}

// openStore opens the stack's database with conns connections.
func (e *env) openStore(ctx context.Context, conns int32) (*store.Store, error) {
	dsn, err := e.database()
	if err != nil {
		return nil, err
	}
	return store.Open(ctx, store.Config{URL: dsn, MaxConns: conns})
}

// make creates n nodes with asynchronous commits, because no data outlives the run. With
// a nil ca their certificate facts are invented.
func (e *env) make(ctx context.Context, n int, ca *vault.Client) ([]node, error) {
	dsn, err := e.database()
	if err != nil {
		return nil, err
	}
	s, err := store.Open(ctx, store.Config{URL: dsn + "&synchronous_commit=off", MaxConns: parallel})
	if err != nil {
		return nil, err
	}
	defer s.Close()
	e.logf("creating %d nodes", n)
	return maker{s, ca}.make(ctx, n)
}

// vaultAs logs in to the stack's Vault with the role of a program.
func (e *env) vaultAs(ctx context.Context, role string) (*vault.Client, error) {
	secret := func(name string) string { return filepath.Join(e.Dir, "secrets", role+"-"+name) }
	return vault.Login(ctx, vault.Config{Address: e.Getenv("VAULT_ADDR"),
		RoleIDFile: secret("role-id"), SecretIDFile: secret("secret-id"), Env: devEnv, Log: silent()})
}

// devEnv is the environment name of the development stack.
const devEnv = "dev"

// maker creates nodes with the same calls of the store and Vault that the API and the
// workflows make. 10,000 enrollments through workflows would take longer than the
// measurement.
type maker struct {
	store *store.Store
	// ca issues real certificates; nil invents their facts.
	ca *vault.Client
}

// make creates n nodes.
func (m maker) make(ctx context.Context, n int) ([]node, error) {
	nodes := make([]node, n)
	var group errgroup.Group
	group.SetLimit(parallel)
	for i := range nodes {
		group.Go(func() (err error) {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			nodes[i], err = m.one(ctx, fmt.Sprintf("bench-%05d", i))
			return err
		})
	}
	return nodes, group.Wait()
}

func (m maker) one(ctx context.Context, host string) (node, error) {
	by := audit.Subject{Actor: "bench", CorrelationID: schema.NewID()}
	v, err := m.store.Admin.Register(ctx, schema.NewID(), wire.RegisterNodeRequest{Host: host, SKU: "cpu-dev", RegionCode: "local"}, by)
	if err != nil {
		return node{}, err
	}
	enrolling, err := claim(ctx, m.store, v, lifecycle.ActionEnroll)
	if err != nil {
		return node{}, err
	}
	n := node{ID: v.ID}
	if err := m.identify(ctx, &n, by); err != nil {
		return n, err
	}
	err = m.store.Operations.Finish(ctx, enrolling.Fence, "", activities.Finish{Status: lifecycle.OperationCompleted, Node: lifecycle.NodeActive, Outcome: "enrolled"})
	if err != nil {
		return n, err
	}
	draining, err := claim(ctx, m.store, v, lifecycle.ActionDrain)
	n.Fence = draining.Fence
	return n, err
}

// identify creates the first identity of the node and uses it once.
func (m maker) identify(ctx context.Context, n *node, by audit.Subject) error {
	_, token, hash := trust.NewToken()
	err := m.store.Identities.IssueToken(ctx, trust.MintedToken{NodeID: n.ID, TokenID: token, Hash: hash,
		Purpose: trust.PurposeEnroll, ExpiresAt: time.Now().Add(trust.TokenTTL)}, by)
	if err != nil {
		return err
	}
	key, csr, err := newRequest()
	if err != nil {
		return err
	}
	claimed, err := m.store.Identities.ClaimToken(ctx, nodeapi.TokenClaim{NodeID: n.ID, TokenID: token, Hash: hash,
		SPKI: schema.SHA256Hex(csr.RawSubjectPublicKeyInfo), RecoveryKey: make([]byte, 32), CorrelationID: by.CorrelationID, RemoteAddr: "127.0.0.1:1"})
	if err != nil {
		return err
	}
	n.Incarnation = claimed.Incarnation
	id := trust.Identity{Env: devEnv, NodeID: n.ID, Incarnation: n.Incarnation}
	cert, err := m.issue(ctx, n, key, csr, id)
	if err != nil {
		return err
	}
	_, recovery, recoveryHash := trust.NewToken()
	if _, err = m.store.Identities.StorePending(ctx, nodeapi.NewIdentity{NodeID: n.ID, Incarnation: n.Incarnation, Via: trust.IssuedByEnroll,
		TokenID: token, Cert: cert, CorrelationID: by.CorrelationID, Recovery: trust.MintedToken{NodeID: n.ID, TokenID: recovery,
			Hash: recoveryHash, Purpose: trust.PurposeRecover, ExpiresAt: time.Now().Add(trust.RecoveryTokenTTL)}}); err != nil {
		return err
	}
	c, err := m.store.Identities.Authenticate(ctx, id, cert)
	if err != nil {
		return err
	}
	return m.store.Identities.RecordPoll(ctx, c, wire.PollRequest{VerifierSet: c.VerifierSet.Version, VerifierSetHash: c.VerifierSet.Hash})
}

// issue returns the facts of the node's certificate.
func (m maker) issue(ctx context.Context, n *node, key *ecdsa.PrivateKey, csr *x509.CertificateRequest, id trust.Identity) (trust.CertFacts, error) {
	if m.ca == nil {
		serial := strings.ReplaceAll(schema.NewID(), "-", "")
		now := time.Now().UTC().Truncate(time.Second)
		return trust.CertFacts{URI: id.URI(), Issuer: "CN=none", Serial: serial, Fingerprint: serial,
			SPKI: schema.SHA256Hex(csr.RawSubjectPublicKeyInfo), NotBefore: now, NotAfter: now.Add(trust.CertTTL)}, nil
	}
	issued, err := m.ca.Issue(ctx, csr, id)
	if err != nil {
		return trust.CertFacts{}, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	n.Cert = issued.LeafPEM + issued.ChainPEM
	n.Key = string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
	return issued.Facts, err
}

func newRequest() (*ecdsa.PrivateKey, *x509.CertificateRequest, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		return nil, nil, err
	}
	csr, err := x509.ParseCertificateRequest(der)
	return key, csr, err
}

// claim claims a node for an operation that remains open.
func claim(ctx context.Context, s *store.Store, v wire.NodeView, a lifecycle.Action) (activities.Claim, error) {
	return s.Operations.Claim(ctx, activities.ClaimRequest{WorkflowID: lifecycle.NodeWorkflowID(v.Host, v.ID), RunID: schema.NewID(),
		OperationInput: lifecycle.OperationInput{OperationID: schema.NewID(), NodeID: v.ID, Action: a, Actor: "bench", Reason: "bench",
			CorrelationID: schema.NewID()}})
}

// spec is a task of the node's operation.
func (n node) spec(step string) activities.TaskSpec {
	return activities.TaskSpec{OperationID: n.Fence.OperationID, OpSeq: n.Fence.OpSeq, NodeID: n.ID, Step: step,
		Type: task.NodeProbe, Deadline: time.Now().Add(time.Hour), CorrelationID: n.Fence.CorrelationID}
}
