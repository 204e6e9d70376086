package console

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"net/http"
	"sync"
	"time"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// How long a session lasts.
const (
	// SessionAge is how long a session lasts after its login, and SessionIdle after its last
	// request.
	SessionAge  = 12 * time.Hour
	SessionIdle = time.Hour
	// SeenEvery is the least time between two records of the last request of a session.
	SeenEvery = time.Minute
	// MaxSessions is the number of sessions of one token. A further login ends the one that was not
	// used for the longest time.
	MaxSessions = 32

	// sessionFresh is how long a session that was read is not read again. Its token is checked on
	// each request.
	sessionFresh = 2 * time.Second
	maxKnown     = 4096
)

// Session is a session of the console as it is stored: no value in it opens a session.
type Session struct {
	// ID is the SHA-256 of the cookie's value, and Token that of the admin token.
	ID, Token [sha256.Size]byte
	// Subject is the name of the token's subject at the login.
	Subject string
}

// Sessions stores sessions. Errors are *schema.Error.
type Sessions interface {
	// CreateSession stores a new session, and deletes others of its token beyond MaxSessions, those
	// that were not used for the longest time.
	CreateSession(ctx context.Context, s Session) error
	// FindSession returns a session. If a person uses it now, it records that, at most every
	// SeenEvery. It returns KindNotFound if there is none, and for one that is older than
	// SessionAge or that was not used for SessionIdle.
	FindSession(ctx context.Context, id [sha256.Size]byte, used bool) (Session, error)
	// DeleteSession deletes a session, if there is one.
	DeleteSession(ctx context.Context, id [sha256.Size]byte) error
}

// sessionID names a session in memory.
type sessionID = [sha256.Size]byte

// sessions finds the session of a request.
type sessions struct {
	cfg    Config
	cookie string
	mu     sync.Mutex
	// known has the sessions that were read less than sessionFresh ago, so that many open pages
	// of a browser cost one query.
	known map[sessionID]knownSession
}

type knownSession struct {
	Session

	at   time.Time
	used bool
}

func newSessions(cfg Config) *sessions {
	s := &sessions{cfg: cfg, cookie: "gpuaas_console", known: map[sessionID]knownSession{}}
	if cfg.URL.Scheme == "https" {
		s.cookie = "__Host-" + s.cookie
	}
	return s
}

// noSession is the error of a request without a valid session.
func noSession() error {
	return schema.NewError(schema.KindUnauthenticated, "this page needs a login").WithReason("no_session").WithNext("open " + Prefix + "/login")
}

// of returns the subject of a request and its session. It is KindUnauthenticated if there is no
// session, or if its token is not accepted any longer.
func (s *sessions) of(r *http.Request) (Subject, sessionID, error) {
	id, ok := s.read(r)
	if !ok {
		return Subject{}, id, noSession()
	}
	subject, err := s.check(r.Context(), id, !automatic(r))
	return subject, id, err
}

// read returns the ID of the session in the cookie of a request.
func (s *sessions) read(r *http.Request) (id sessionID, ok bool) {
	cookies := r.CookiesNamed(s.cookie)
	if len(cookies) != 1 || len(cookies[0].Value) > 64 {
		return id, false
	}
	return sha256.Sum256([]byte(cookies[0].Value)), true
}

// automatic reports whether the script makes a request without a person, which does not keep a
// session from expiring.
func automatic(r *http.Request) bool {
	return r.Header.Get("Gpuaas-Region") != "" || r.URL.Path == Prefix+"/events"
}

// check returns the subject that a session has now. used is true if a person uses it.
func (s *sessions) check(ctx context.Context, id sessionID, used bool) (Subject, error) {
	session, err := s.find(ctx, id, used)
	if err != nil {
		return Subject{}, err
	}
	return s.subject(session)
}

// subject returns what the token of a session stands for now. A token that another subject has
// now ends the session.
func (s *sessions) subject(session Session) (Subject, error) {
	subject, ok := s.cfg.Tokens(session.Token)
	if !ok || subject.Name != session.Subject || !subject.Role.Allows(trust.RoleViewer) {
		return Subject{}, noSession()
	}
	return subject, nil
}

func (s *sessions) find(ctx context.Context, id sessionID, used bool) (Session, error) {
	s.mu.Lock()
	k, ok := s.known[id]
	s.mu.Unlock()
	if ok && s.cfg.Now().Sub(k.at) < sessionFresh && (k.used || !used) {
		return k.Session, nil
	}
	found, err := s.cfg.Sessions.FindSession(ctx, id, used)
	if schema.KindOf(err) == schema.KindNotFound {
		s.forget(id)
		return Session{}, noSession()
	}
	if err != nil {
		return Session{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.known) >= maxKnown {
		clear(s.known)
	}
	s.known[id] = knownSession{found, s.cfg.Now(), used}
	return found, nil
}

func (s *sessions) forget(id sessionID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.known, id)
}

// begin stores a new session for a token and sets its cookie. The session that the browser had
// before ends, so that no one else has the ID of the new one.
func (s *sessions) begin(w http.ResponseWriter, r *http.Request, token [sha256.Size]byte, subject Subject) error {
	if old, ok := s.read(r); ok {
		if err := s.end(r.Context(), old); err != nil {
			return err
		}
	}
	random := make([]byte, 32)
	_, _ = rand.Read(random) // never fails
	value := base64.RawURLEncoding.EncodeToString(random)
	err := s.cfg.Sessions.CreateSession(r.Context(), Session{ID: sha256.Sum256([]byte(value)), Token: token, Subject: subject.Name})
	if err == nil {
		s.set(w, value, int(SessionAge/time.Second))
	}
	return err
}

func (s *sessions) end(ctx context.Context, id sessionID) error {
	s.forget(id)
	return s.cfg.Sessions.DeleteSession(ctx, id)
}

// set sets the cookie; a negative age deletes it.
func (s *sessions) set(w http.ResponseWriter, value string, age int) {
	http.SetCookie(w, &http.Cookie{Name: s.cookie, Value: value, Path: "/", MaxAge: age, HttpOnly: true,
		SameSite: http.SameSiteLaxMode, Secure: s.cfg.URL.Scheme == "https"})
}
