package agent

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"time"

	"github.com/gpuaas/gpuaas/schema"
)

// enroller gets a certificate for a key that never leaves the node.
type enroller struct {
	state stateDir
	store identityStore
	log   *slog.Logger
	now   func() time.Time
}

// enroll makes one attempt. It may be called again after any failure: the key
// is kept until a certificate for it is stored, because the server's claim of
// the token is bound to that key, so that an answer lost on the way costs
// nothing. The token is sent inside TLS to a server that the CA bundle proves;
// a handshake with any other ends before a byte of the request leaves.
func (e enroller) enroll(ctx context.Context, c Config) (*identity, error) {
	if c.EnrollmentToken == "" {
		return nil, schema.NewError(schema.KindUnauthenticated, "GPUAAS_ENROLLMENT_TOKEN is not set").
			WithNext("ask for a new bundle: gpuaas node reissue-enrollment " + c.NodeID)
	}
	key, keyPEM, err := e.key()
	if err != nil {
		return nil, err
	}
	// The server takes the key from the request and nothing else.
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		return nil, fmt.Errorf("making the certificate request: %w", err)
	}
	api, err := newClient(c, nil)
	if err != nil {
		return nil, err
	}
	defer api.close()
	answer, err := api.enroll(ctx, schema.EnrollRequest{
		Token:        string(c.EnrollmentToken),
		CSR:          string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: csr})),
		AgentVersion: Version(),
	}, schema.NewID())
	if err != nil {
		return nil, err
	}
	certPEM := []byte(answer.Certificate + "\n" + answer.CAChain)
	if err := e.check(c, answer, certPEM, keyPEM); err != nil {
		return nil, err
	}
	if err := e.store.save(certPEM, keyPEM); err != nil {
		return nil, err
	}
	if err := os.Remove(e.keyPath()); err != nil {
		e.log.Warn("enrolment key left behind", "err", err)
	}
	return e.store.load()
}

// check refuses an answer that is not for this node and this key.
func (e enroller) check(c Config, a schema.EnrollAnswer, certPEM, keyPEM []byte) error {
	id, err := parseIdentity(certPEM, keyPEM)
	if err != nil {
		return schema.Wrap(schema.KindServiceUnavailable, err, "the server's certificate does not fit the key")
	}
	if err := id.matches(c, e.now()); err != nil {
		return schema.Wrap(schema.KindServiceUnavailable, err, "the server's certificate is not usable here")
	}
	if id.id.Incarnation != a.Incarnation {
		return schema.Errorf(schema.KindServiceUnavailable, "the server's certificate is of incarnation %d, its answer says %d",
			id.id.Incarnation, a.Incarnation)
	}
	return nil
}

func (e enroller) keyPath() string { return e.state.file("enroll-key.pem") }

// key returns the key of the enrolment under way, making it at first.
func (e enroller) key() (*ecdsa.PrivateKey, []byte, error) {
	text, err := os.ReadFile(e.keyPath())
	if err == nil {
		if key, parseErr := parseKey(text); parseErr == nil {
			return key, text, nil
		}
		e.log.Warn("stored enrolment key does not read, making a new one")
	} else if !errors.Is(err, fs.ErrNotExist) {
		return nil, nil, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, nil, err
	}
	text = pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
	if err := e.state.disk.write(e.keyPath(), text); err != nil {
		return nil, nil, fmt.Errorf("storing the enrolment key: %w", err)
	}
	return key, text, nil
}

func parseKey(text []byte) (*ecdsa.PrivateKey, error) {
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, errors.New("no PEM")
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, err
	}
	ec, ok := key.(*ecdsa.PrivateKey)
	if !ok || ec.Curve != elliptic.P256() {
		return nil, errors.New("not a P-256 key")
	}
	return ec, nil
}

// ensureIdentity returns the stored identity, enrolling until there is one. It
// ends early only with the context or when the node is removed. What retrying
// cannot mend (a spent token) is asked again slowly, with the env file read
// anew each time, because a person may replace the bundle.
func (a *Agent) ensureIdentity(ctx context.Context) (*identity, error) {
	soon := backoff{min: a.timing.pollMin, max: a.timing.pollMax}
	late := backoff{min: a.timing.refusedMin, max: a.timing.refusedMax}
	for {
		id, err := a.store.load()
		if err == nil {
			err = id.matches(a.conf, a.now())
		}
		if err == nil {
			return id, nil
		}
		if !errors.Is(err, errNotInstalled) {
			a.log.Info("enrolment starts", "cause", err.Error(), "server", a.conf.APIURL)
			id, err = a.enroller().enroll(ctx, a.conf)
		}
		if err == nil {
			a.log.Info("enrolment succeeded", "serial", id.facts.Serial, "issuer", id.facts.Issuer,
				"not_after", id.facts.NotAfter, "incarnation", id.id.Incarnation)
			return id, nil
		}
		if isRemoved(err) || ctx.Err() != nil {
			return nil, err
		}
		e := schema.AsError(err)
		wait := soon.next()
		if !e.Kind.Row().Retry {
			wait = late.next()
		}
		a.log.Error("enrolment failed", "code", string(e.Kind), "reason", e.Reason, "err", err.Error(),
			"next", e.Next, "retry_in", wait.String())
		if err := pause(ctx, wait); err != nil {
			return nil, err
		}
		a.rereadBundle()
	}
}

// rereadBundle takes a replaced token and address from the environment and the
// env file. Anything unreadable keeps what stood.
func (a *Agent) rereadBundle() {
	if a.reload == nil {
		return
	}
	c, err := a.reload()
	if err == nil {
		err = c.Validate()
	}
	if err != nil {
		a.log.Warn("configuration does not read, keeping the old one", "err", err.Error())
		return
	}
	if c.NodeID == a.conf.NodeID && c.StateDir == a.conf.StateDir {
		a.conf.EnrollmentToken, a.conf.APIURL, a.conf.CABundlePath = c.EnrollmentToken, c.APIURL, c.CABundlePath
		a.conf.SigningPubkeys, a.conf.verifiers = c.SigningPubkeys, c.verifiers
	}
}

func (a *Agent) enroller() enroller {
	return enroller{state: a.state, store: a.store, log: a.log, now: a.now}
}
